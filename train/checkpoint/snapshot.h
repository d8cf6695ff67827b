#pragma once
// A copy of a rank's state in host memory, laid out as the safetensors file that it becomes.

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/data/state_part.h"
#include "train/checkpoint/plan.h"

namespace tetra {

/// Page-aligned memory that is kept from one save to the next: fresh pages cost more than the copy.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  /// At least `bytes`, in whole pages; what it held is lost when it grows.
  void reserve(uint64_t bytes);
  /// Has the system give all pages now.
  void touch();
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  uint64_t size_ = 0;
};

class Snapshot {
 public:
  /// Lays out the file for these parts. Throws Error, naming the tensor, where a part is not a box of its tensor, two
  /// are the same box, or a tensor is given two shapes or types.
  void arrange(const std::vector<StatePart>& parts, const std::string& file);
  void touch() { buffer_.touch(); }

  /// Copies the parts, which must be those that were arranged.
  void copy(const std::vector<StatePart>& parts, int threads);

  /// The file's bytes; none where no part has an element.
  const char* image() const { return buffer_.data(); }
  uint64_t bytes() const { return bytes_; }
  const std::map<std::string, PlannedTensor>& tensors() const { return tensors_; }

 private:
  HostBuffer buffer_;
  uint64_t bytes_ = 0;
  std::string header_;
  std::vector<uint64_t> begins_;  // of each part in the image
  std::map<std::string, PlannedTensor> tensors_;
};

}  // namespace tetra
