#include "train/checkpoint/box.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "mesh/backend/stream_copy.h"

namespace tetra {

int64_t Box::numel() const {
  int64_t result = 1;
  for (const int64_t size : sizes) {
    result *= size;
  }
  return result;
}

std::string Box::text() const {
  std::string result = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    result += fmt::format("{}{}:{}", i == 0 ? "" : ",", offsets[i], offsets[i] + sizes[i]);
  }
  return result + "]";
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box both;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    const int64_t begin = std::max(a.offsets[i], b.offsets[i]);
    const int64_t end = std::min(a.offsets[i] + a.sizes[i], b.offsets[i] + b.sizes[i]);
    if (begin >= end) {
      return std::nullopt;
    }
    both.offsets.push_back(begin);
    both.sizes.push_back(end - begin);
  }
  return both;
}

bool lies_within(const Box& box, at::IntArrayRef shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) {
    return false;
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t offset = box.offsets[i];
    if (offset < 0 || offset > shape[i] || box.sizes[i] < 0 || box.sizes[i] > shape[i] - offset) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> contiguous_strides(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * sizes[i];
  }
  return strides;
}

int64_t CopyLoops::bytes(size_t outermost) const {
  int64_t result = loops.empty() ? 0 : 1;
  for (size_t i = outermost; i < loops.size(); ++i) {
    result *= loops[i].size;
  }
  return result;
}

CopyLoops copy_loops(at::IntArrayRef sizes, at::IntArrayRef to_strides, at::IntArrayRef from_strides, int64_t item) {
  std::vector<CopyLoops::Loop> inwards = {{item, 1, 1}};  // innermost first
  for (size_t i = sizes.size(); i-- > 0;) {
    const CopyLoops::Loop outer = {sizes[i], to_strides[i] * item, from_strides[i] * item};
    CopyLoops::Loop& inner = inwards.back();
    if (outer.size == 0) {
      return {};
    }
    if (outer.to == inner.to * inner.size && outer.from == inner.from * inner.size) {
      inner.size *= outer.size;
    } else if (outer.size > 1) {
      inwards.push_back(outer);
    }
  }
  return {{inwards.rbegin(), inwards.rend()}};
}

namespace {

constexpr int64_t kStreamed = int64_t{2} << 10;  // bytes of a run from which on it goes past the caches

void copy_run(char* to, const char* from, int64_t bytes) {
  if (bytes >= kStreamed) {
    stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

template <size_t bytes>
void copy_items(const CopyLoops::Loop& loop, char* to, const char* from) {
  for (int64_t i = 0; i < loop.size; ++i) {
    std::memcpy(to + i * loop.to, from + i * loop.from, bytes);
  }
}

// The two innermost loops; single elements are worth a copy of known size.
void copy_rows(const CopyLoops::Loop& rows, int64_t bytes, char* to, const char* from) {
  switch (bytes) {
    case 1:
      return copy_items<1>(rows, to, from);
    case 2:
      return copy_items<2>(rows, to, from);
    case 4:
      return copy_items<4>(rows, to, from);
    case 8:
      return copy_items<8>(rows, to, from);
    default:
      for (int64_t i = 0; i < rows.size; ++i) {
        copy_run(to + i * rows.to, from + i * rows.from, bytes);
      }
  }
}

}  // namespace

namespace {

void run_loops(const CopyLoops& copy, char* to, const char* from, size_t outermost) {
  const size_t left = copy.loops.size() - std::min(outermost, copy.loops.size());
  if (left == 0) {
    return;
  }
  const CopyLoops::Loop& loop = copy.loops[outermost];
  if (left == 1) {
    copy_run(to, from, loop.size);
  } else if (left == 2) {
    copy_rows(loop, copy.loops[outermost + 1].size, to, from);
  } else {
    for (int64_t i = 0; i < loop.size; ++i) {
      run_loops(copy, to + i * loop.to, from + i * loop.from, outermost + 1);
    }
  }
}

}  // namespace

void run_copy(const CopyLoops& copy, char* to, const char* from) {
  run_loops(copy, to, from, 0);
  finish_streaming();
}

std::vector<CopyPiece> cut_copy(const CopyLoops& copy, int64_t bytes) {
  std::vector<CopyPiece> pieces;
  if (copy.loops.empty()) {
    return pieces;
  }
  const CopyLoops::Loop& outer = copy.loops[0];
  const int64_t rounds = std::max<int64_t>(1, bytes / std::max<int64_t>(1, copy.bytes(1)));
  for (int64_t begin = 0; begin < outer.size; begin += rounds) {
    CopyPiece piece = {copy, begin * outer.to, begin * outer.from};
    piece.copy.loops[0].size = std::min(rounds, outer.size - begin);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace tetra
