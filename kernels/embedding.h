#pragma once
// Table lookup with a gradient that accumulates in at least fp32.

#include <ATen/core/Tensor.h>

namespace tetra {

/// Rows of table [V, H] for ids [T] (int64, in [0, V)), zero where `held` [T] (bool) is false; held may be undefined:
/// all rows. The gradient of a row that several tokens share is summed in fp32 (fp64 for fp64), in the tokens' order
/// whatever the number of threads, and rounded once.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& held = {});

}  // namespace tetra
