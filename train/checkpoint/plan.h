#pragma once
// The plan of a checkpoint: which box of which tensor lies where. docs/checkpoints.md describes the format.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "train/checkpoint/box.h"
#include "train/checkpoint/checksum.h"

namespace tetra {

inline constexpr const char* kPlanFile = "plan.json";
inline constexpr const char* kPlanFormat = "tetra-checkpoint";
inline constexpr int64_t kPlanVersion = 1;

struct PlannedChunk {
  std::string file;
  uint64_t begin = 0;  // byte of the file at which the box's elements start, row-major
  Box box;
};

struct PlannedTensor {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  std::vector<PlannedChunk> chunks;  // none of them empty
};

/// Of a whole checkpoint, or of what one rank wrote.
struct CheckpointPlan {
  int64_t step = 0;
  int64_t world_size = 0;
  std::map<std::string, FileSum> files;  // by the path within the folder
  std::map<std::string, PlannedTensor> tensors;
  std::string state_json = "{}";  // an object
};

/// The name that a box has in its safetensors file.
std::string chunk_key(const std::string& tensor, const Box& box);

/// The text of plan.json. Throws Error where state_json is not a JSON object, or a name not UTF-8.
std::string plan_text(const CheckpointPlan& plan);

/// Reads and checks it: format, version, the text's own checksum, and that every chunk lies within its tensor and its
/// file. Throws Error that begins with `origin`.
CheckpointPlan parse_plan(const std::string& text, const std::string& origin);

/// Adds what another rank wrote. Throws Error where the two give a tensor different types or shapes, or write one file.
void merge_plan(CheckpointPlan& plan, CheckpointPlan&& other);

/// Throws Error, naming the tensor, unless the chunks of each tensor hold each of its elements exactly once.
void check_tiling(const CheckpointPlan& plan, const std::string& origin);

}  // namespace tetra
