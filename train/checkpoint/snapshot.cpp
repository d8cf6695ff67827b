#include "train/checkpoint/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "kernels/error.h"
#include "models/safetensors_format.h"
#include "train/checkpoint/file.h"
#include "train/checkpoint/tasks.h"

namespace tetra {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;  // bytes that a thread copies at a time
constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t rounded_up(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

void HostBuffer::reserve(uint64_t bytes) {
  if (bytes <= size_) {
    return;
  }
  if (data_ != nullptr) {
    ::munmap(data_, size_);
    data_ = nullptr;
    size_ = 0;
  }
  const uint64_t size = rounded_up(bytes, bytes < kHugePage ? kPage : kHugePage);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(data != MAP_FAILED, "no memory for a checkpoint's copy of the state ({} bytes): {}", size,
          system_reason(errno));
  ::madvise(data, size, MADV_HUGEPAGE);
  data_ = static_cast<char*>(data);
  size_ = size;
}

void HostBuffer::touch() {
  for (uint64_t at = 0; at < size_; at += kPage) {
    static_cast<volatile char*>(data_)[at] = 0;
  }
}

namespace {

Box box_of(const StatePart& part) {
  return {part.offsets, part.data.sizes().vec()};
}

void check_part(const StatePart& part) {
  require(part.data.defined() && part.data.layout() == at::kStrided && !part.data.is_conj() && !part.data.is_neg(),
          "tensor '{}' of a checkpoint is not a plain strided tensor", part.name);
  require(lies_within(box_of(part), part.global_shape), "tensor '{}': sizes {} at {} are not a box of shape {}",
          part.name, part.data.sizes().vec(), part.offsets, part.global_shape);
}

/// The tensor's entry, made at its first part.
PlannedTensor& planned(std::map<std::string, PlannedTensor>& tensors, const StatePart& part) {
  PlannedTensor& tensor = tensors[part.name];
  const at::ScalarType dtype = part.data.scalar_type();
  if (tensor.dtype == at::ScalarType::Undefined) {
    tensor.dtype = dtype;
    tensor.shape = part.global_shape;
  }
  require(tensor.dtype == dtype && tensor.shape == part.global_shape,
          "tensor '{}' is {} {} in one part and {} {} in "
          "another",
          part.name, c10::toString(tensor.dtype), tensor.shape, c10::toString(dtype), part.global_shape);
  return tensor;
}

}  // namespace

void Snapshot::arrange(const std::vector<StatePart>& parts, const std::string& file) {
  tensors_.clear();
  TensorShapes shapes;
  for (const StatePart& part : parts) {
    check_part(part);
    planned(tensors_, part);
    const Box box = box_of(part);
    if (box.numel() > 0) {
      const bool added =
          shapes.try_emplace(chunk_key(part.name, box), part.data.scalar_type(), part.data.sizes().vec()).second;
      require(added, "tensor '{}': its box {} is given twice", part.name, box.text());
    }
  }
  const SafetensorsLayout layout = layout_safetensors(shapes, file);
  header_ = layout.header;
  bytes_ = shapes.empty() ? 0 : layout.file_size;
  begins_.clear();
  for (const StatePart& part : parts) {
    const Box box = box_of(part);
    const auto entry = layout.tensors.find(chunk_key(part.name, box));
    begins_.push_back(header_.size() + (entry == layout.tensors.end() ? 0 : entry->second.begin));
    if (box.numel() > 0) {
      tensors_.at(part.name).chunks.push_back({file, begins_.back(), box});
    }
  }
  buffer_.reserve(bytes_);
}

namespace {

struct CopyTask {
  CopyLoops copy;
  char* to;
  const char* from;
};

void add_tasks(std::vector<CopyTask>& tasks, const at::Tensor& data, char* to) {
  const auto sizes = data.sizes();
  const auto* from = static_cast<const char*>(data.const_data_ptr());
  const CopyLoops copy = copy_loops(sizes, contiguous_strides(sizes), data.strides(), data.element_size());
  for (CopyPiece& piece : cut_copy(copy, kPiece)) {
    tasks.push_back({std::move(piece.copy), to + piece.to, from + piece.from});
  }
}

}  // namespace

void Snapshot::copy(const std::vector<StatePart>& parts, int threads) {
  const at::NoGradGuard no_gradients;
  if (bytes_ == 0) {
    return;
  }
  std::memcpy(buffer_.data(), header_.data(), header_.size());
  std::vector<CopyTask> tasks;
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& data = parts[i].data;
    char* to = buffer_.data() + begins_[i];
    if (data.numel() == 0) {
      continue;
    }
    if (data.device().is_cpu()) {
      add_tasks(tasks, data, to);
    } else {
      at::from_blob(to, data.sizes(), data.options().device(at::kCPU)).copy_(data);
    }
  }
  run_tasks(tasks.size(), threads, [&](size_t i) { run_copy(tasks[i].copy, tasks[i].to, tasks[i].from); });
}

}  // namespace tetra
