#pragma once
// Which part of a global tensor one rank holds.

#include <cstdint>
#include <vector>

namespace tetra {

/// Half-open index range [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// A rank's part of a tensor of `global_shape`: along `dim` the index `ranges`, joined in order. Ranges of different
/// ranks may have different lengths and may overlap (kv heads that several tp ranks need).
struct Slice {
  std::vector<int64_t> global_shape;
  int64_t dim = 0;
  std::vector<Range> ranges;

  /// The whole tensor (also for scalars, whose shape is empty).
  static Slice whole(std::vector<int64_t> shape);

  bool is_whole() const;
  /// global_shape with dim `dim` replaced by the sum of the ranges' sizes.
  std::vector<int64_t> local_shape() const;
  int64_t local_numel() const;
};

/// A box of a slice's local tensor, and where it lies in the global one.
struct SliceBox {
  std::vector<int64_t> sizes;
  std::vector<int64_t> local;   // offsets in the tensor of slice.local_shape()
  std::vector<int64_t> global;  // offsets in the tensor of slice.global_shape
};

/// The elements [flat.begin, flat.end) of the local tensor, counted row-major, as few disjoint boxes.
std::vector<SliceBox> boxes_of(const Slice& slice, Range flat);

/// The overlap of two ranges, empty (begin == end) where there is none.
Range intersect(Range a, Range b);

/// Part `index` of `count` nearly equal parts of [0, size): the first size % count parts are one longer.
Range even_range(int64_t size, int64_t count, int64_t index);

}  // namespace tetra
