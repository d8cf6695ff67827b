#include "mesh/slice.h"

#include <algorithm>
#include <utility>

#include "kernels/error.h"

namespace tetra {

Slice Slice::whole(std::vector<int64_t> shape) {
  Slice slice;
  const int64_t size = shape.empty() ? 1 : shape.front();
  slice.global_shape = std::move(shape);
  slice.ranges = {{0, size}};
  return slice;
}

bool Slice::is_whole() const {
  const int64_t size = global_shape.empty() ? 1 : global_shape.at(static_cast<size_t>(dim));
  int64_t next = 0;
  for (const Range& range : ranges) {
    if (range.begin != next) {
      return false;
    }
    next = range.end;
  }
  return next == size;
}

std::vector<int64_t> Slice::local_shape() const {
  if (global_shape.empty()) {
    require(is_whole(), "a scalar cannot be cut");
    return {};
  }
  require(dim >= 0 && dim < static_cast<int64_t>(global_shape.size()), "slice along dim {} of a tensor of shape [{}]",
          dim, fmt::join(global_shape, ", "));
  std::vector<int64_t> shape = global_shape;
  int64_t& size = shape[static_cast<size_t>(dim)];
  int64_t local = 0;
  for (const Range& range : ranges) {
    require(range.begin >= 0 && range.begin <= range.end && range.end <= size,
            "range [{}, {}) is not inside dim {} of a tensor of shape [{}]", range.begin, range.end, dim,
            fmt::join(global_shape, ", "));
    local += range.size();
  }
  size = local;
  return shape;
}

int64_t Slice::local_numel() const {
  int64_t numel = 1;
  for (int64_t size : local_shape()) {
    numel *= size;
  }
  return numel;
}

Range even_range(int64_t size, int64_t count, int64_t index) {
  require(size >= 0 && count >= 1 && index >= 0 && index < count, "part {} of {} parts of {} does not exist", index,
          count, size);
  const int64_t length = size / count;
  const int64_t longer = size % count;
  const int64_t begin = index * length + std::min(index, longer);
  return {begin, begin + length + (index < longer ? 1 : 0)};
}

}  // namespace tetra
