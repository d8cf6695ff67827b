#pragma once
// What a tensor is along the tp axis, as C++ types: a forgotten region function is a compile error, not a wrong
// gradient.
//   Replicated  equal on all ranks, its gradient is a partial sum
//   Varying     a different part on each rank (heads, features, tokens)
//   Partial     the ranks' tensors add up to the value
//   Stream      the residual stream between regions: Invariant (equal on all ranks, gradient too), or under
//               sequence_parallel Varying over tokens
// Only linear operations may take a Partial, so nothing here takes one but leave().

#include <utility>

#include <ATen/core/Tensor.h>

namespace tetra {

enum class Spmd { replicated, varying, partial };

template <Spmd kind>
struct Typed {
  at::Tensor tensor;
  explicit Typed(at::Tensor t) : tensor(std::move(t)) {}
};
using Replicated = Typed<Spmd::replicated>;
using Varying = Typed<Spmd::varying>;
using Partial = Typed<Spmd::partial>;

/// Residual stream, [T, H], or [ceil(T/tp), H] of the flattened tokens under sequence_parallel (padded at the end of
/// the last ranks, so that tp need not divide T). `tokens` is T.
struct Stream {
  at::Tensor tensor;
  int64_t tokens;
};

}  // namespace tetra
