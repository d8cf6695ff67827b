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

namespace {

using Offsets = std::vector<int64_t>;

/// Boxes of the tensor `shape` in which dims below `depth` are fixed to `at`, covering its elements [begin, end).
void cut_boxes(const Offsets& shape, size_t depth, Offsets at, int64_t begin, int64_t end,
               std::vector<SliceBox>& boxes) {
  if (begin >= end) {
    return;
  }
  int64_t inner = 1;
  for (size_t d = depth + 1; d < shape.size(); ++d) {
    inner *= shape[d];
  }
  const auto whole_rows = [&](int64_t first, int64_t last) {
    SliceBox box;
    box.local = at;
    box.sizes.assign(depth, 1);
    box.local.push_back(first);
    box.sizes.push_back(last - first);
    for (size_t d = depth + 1; d < shape.size(); ++d) {
      box.local.push_back(0);
      box.sizes.push_back(shape[d]);
    }
    boxes.push_back(std::move(box));
  };
  const auto part_of_row = [&](int64_t row, int64_t from, int64_t to) {
    Offsets inside = at;
    inside.push_back(row);
    cut_boxes(shape, depth + 1, std::move(inside), from, to, boxes);
  };
  const int64_t first = begin / inner;
  const int64_t last = end / inner;
  if (first == last) {
    return part_of_row(first, begin % inner, end % inner);
  }
  const int64_t full = begin % inner == 0 ? first : first + 1;
  if (full != first) {
    part_of_row(first, begin % inner, inner);
  }
  if (full < last) {
    whole_rows(full, last);
  }
  if (end % inner != 0) {
    part_of_row(last, 0, end % inner);
  }
}

}  // namespace

Range intersect(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::vector<SliceBox> boxes_of(const Slice& slice, Range flat) {
  require(flat.begin >= 0 && flat.end <= slice.local_numel(), "elements [{}, {}) of a slice that has {}", flat.begin,
          flat.end, slice.local_numel());
  if (slice.global_shape.empty()) {
    return flat.size() == 0 ? std::vector<SliceBox>() : std::vector<SliceBox>{{}};
  }
  std::vector<SliceBox> local;
  cut_boxes(slice.local_shape(), 0, {}, flat.begin, flat.end, local);
  std::vector<SliceBox> boxes;
  const auto dim = static_cast<size_t>(slice.dim);
  for (const SliceBox& box : local) {
    int64_t offset = 0;  // of the range in the local tensor
    for (const Range& range : slice.ranges) {
      const Range part = intersect({box.local[dim], box.local[dim] + box.sizes[dim]}, {offset, offset + range.size()});
      if (part.size() > 0) {
        SliceBox piece = box;
        piece.local[dim] = part.begin;
        piece.sizes[dim] = part.size();
        piece.global = piece.local;
        piece.global[dim] = range.begin + part.begin - offset;
        boxes.push_back(std::move(piece));
      }
      offset += range.size();
    }
  }
  return boxes;
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
