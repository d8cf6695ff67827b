#pragma once
// Boxes of global tensors, and copies between strided memory.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

namespace tetra {

/// Elements [offsets, offsets + sizes) of a tensor, dim by dim; a scalar's box has no dims.
struct Box {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  int64_t numel() const;
  std::string text() const;  // "[0:4,8:16]"
};

/// What both boxes hold, or nothing. Both have the same number of dims.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Whether the box lies within a tensor of this shape.
bool lies_within(const Box& box, at::IntArrayRef shape);

/// Strides of a contiguous tensor, in elements.
std::vector<int64_t> contiguous_strides(at::IntArrayRef sizes);

/// A copy between two strided memories as nested loops, outermost first. The last one runs over bytes that are
/// contiguous on both sides; loops that continue each other on both sides are joined.
struct CopyLoops {
  struct Loop {
    int64_t size;
    int64_t to;  // bytes from one round to the next
    int64_t from;
  };
  std::vector<Loop> loops;  // empty where there is nothing to copy

  int64_t bytes(size_t outermost = 0) const;  // that the loops from `outermost` inwards copy
};

/// Strides in elements of `item` bytes each.
CopyLoops copy_loops(at::IntArrayRef sizes, at::IntArrayRef to_strides, at::IntArrayRef from_strides, int64_t item);

/// Runs the loops; long runs go past the caches.
void run_copy(const CopyLoops& copy, char* to, const char* from);

/// One part of a copy that was cut along its outermost loop.
struct CopyPiece {
  CopyLoops copy;
  int64_t to;  // bytes past the whole copy's start
  int64_t from;
};

/// Pieces of about `bytes` each, so that threads can share a copy.
std::vector<CopyPiece> cut_copy(const CopyLoops& copy, int64_t bytes);

}  // namespace tetra
