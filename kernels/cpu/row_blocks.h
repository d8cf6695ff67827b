#pragma once
// Sums over rows in an order that does not depend on the number of threads: rows are cut into blocks by their number
// alone, each block sums into a row of its own, and these are added in order.

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "kernels/cpu/dispatch.h"

namespace tetra::cpu {

/// Calls f(partial, first_row, row_count) for each block and returns the sum of the partials, [sums, width] in fp32
/// (fp64 for fp64). `partial` points at [sums, width] zeros.
template <typename A, typename F>
at::Tensor sum_over_rows(int64_t rows, int64_t width, int64_t sums, const at::Tensor& like, const F& f) {
  const int64_t block = std::max<int64_t>(32, (rows + 127) / 128);
  const int64_t blocks = std::max<int64_t>(1, (rows + block - 1) / block);
  at::Tensor partials = at::zeros({blocks, sums, width}, like.options().dtype(accumulate_type(like.scalar_type())));
  A* data = output<A>(partials);
  share_out(blocks, block * width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      f(data + i * sums * width, i * block, std::min(block, rows - i * block));
    }
  });
  A* total = data;
  for (int64_t i = 1; i < blocks; ++i) {
    const A* part = data + i * sums * width;
    for (int64_t j = 0; j < sums * width; ++j) {
      total[j] += part[j];
    }
  }
  return partials.select(0, 0);
}

}  // namespace tetra::cpu
