#pragma once
// Reading checkpoints, on any layout.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/data/state_part.h"
#include "train/checkpoint/plan.h"

namespace tetra {

/// One checkpoint. What it stores are boxes of global tensors, and what it is asked for are boxes: it does not matter
/// which layout saved them.
class CheckpointReader {
 public:
  /// `folder` is DIR/step-NNNNNNNN. Reads and checks the plan, and that every file is there with its size. Throws Error
  /// with the name of the file that is missing, foreign, of another version, truncated or corrupt.
  static CheckpointReader open(const std::string& folder);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  /// Reads every file whose index is `rank` modulo `world_size` and compares its checksum, so that all ranks together
  /// read everything once. Returns what is wrong, with the file's name, or nothing.
  std::optional<std::string> verify(int rank, int world_size) const;

  /// Fills the parts' memory, bit for bit. Throws Error where a tensor is missing, or has another shape or type,
  /// naming both and the file. Reads with a few threads.
  void read(const std::vector<StatePart>& parts) const;
  /// The same, but floating-point types convert (with the rounding of Tensor::to).
  void read_converted(const std::vector<StatePart>& parts) const;
  /// One tensor in its stored type, on the CPU.
  at::Tensor read_whole(const std::string& name) const;

  int64_t step() const;
  int64_t world_size() const;  // that saved it
  const std::string& state_json() const;
  bool has_object(const std::string& name) const;
  std::string object(const std::string& name) const;
  bool contains(const std::string& name) const;
  /// Types, shapes and places by name.
  const std::map<std::string, PlannedTensor>& tensors() const;
  const std::string& folder() const;

 private:
  struct State;
  explicit CheckpointReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tetra
