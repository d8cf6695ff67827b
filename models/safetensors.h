#pragma once
// Reading and writing of safetensors files and Hugging Face weight folders.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/slice.h"

namespace tetra {

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::string file;  // path of the file that holds it
};

/// The tensors of a folder (model.safetensors, or model.safetensors.index.json and its shards; the single file wins
/// where both are there, as in transformers), of one file, or of one index. Memory-mapped: a rank touches just the
/// pages of its slices. Every header is checked when it is opened (sizes, offsets, overlaps, duplicates, index against
/// shards, "../" in file names); an Error names file and tensor. A file that another program cuts short while it is
/// open ends the process, as with any mapping. Reading is safe from many threads.
class WeightReader {
 public:
  static WeightReader open(const std::string& folder_or_file);
  WeightReader(WeightReader&&) noexcept;
  WeightReader& operator=(WeightReader&&) noexcept;
  ~WeightReader();

  const std::map<std::string, TensorInfo>& tensors() const;
  bool contains(const std::string& name) const;

  /// A new contiguous CPU tensor with the part that `slice` names, converted to `dtype`: to the stored type, to any of
  /// F64, F32, F16 and BF16 from these and from integers, and to I64 from smaller integers; rounding as Tensor::to.
  /// Throws Error when the name is missing, the stored shape is not slice.global_shape (naming both shapes and the
  /// file), or the types do not convert.
  at::Tensor read(const std::string& name, const Slice& slice, at::ScalarType dtype) const;
  /// Just the elements [flat.begin, flat.end) of that part, counted row-major: a flat tensor.
  at::Tensor read(const std::string& name, const Slice& slice, Range flat, at::ScalarType dtype) const;

 private:
  struct State;
  explicit WeightReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Writes one safetensors file, tensor by tensor, without holding them all: declare first, then write each once, in any
/// order, in parts of dim 0 if wanted. Metadata {"format": "pt"} is always there. Written to a temporary name, flushed,
/// renamed by finish(); a writer that dies unfinished removes its temporary file. Errors name file, tensor and reason.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::string path, std::map<std::string, std::pair<at::ScalarType, std::vector<int64_t>>> tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// `tensor` contiguous CPU, of the declared type and shape.
  void write(const std::string& name, const at::Tensor& tensor);
  /// Rows [first_row, first_row + tensor.size(0)) of dim 0; the other dims as declared. Each row is written once.
  void write_rows(const std::string& name, const at::Tensor& tensor, int64_t first_row);
  /// Throws Error when a declared tensor was not written whole.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// How a folder's tensors are divided into files: name -> file name, plus the index's text where there is more than one
/// file. Files are filled in the order given, up to max_shard_bytes each (a larger tensor gets its own file).
struct ShardPlan {
  std::vector<std::pair<std::string, std::vector<std::string>>> files;  // file name -> tensor names
  std::string index_json;                                               // empty for a single file
};
ShardPlan plan_shards(
    const std::vector<std::pair<std::string, std::pair<at::ScalarType, std::vector<int64_t>>>>& tensors,
    int64_t max_shard_bytes);

inline constexpr const char* kSingleWeightFile = "model.safetensors";
inline constexpr const char* kWeightIndexFile = "model.safetensors.index.json";

/// Removes weight files of an earlier save in `folder` that `plan` does not write: readers take a stale single file
/// before a new index. Call it after the shards are written and before the index is.
void remove_stale_weight_files(const std::string& folder, const ShardPlan& plan);

/// Writes `text` to `path` through a temporary name, flushed, then renamed.
void write_file_atomically(const std::string& path, const std::string& text);

}  // namespace tetra
