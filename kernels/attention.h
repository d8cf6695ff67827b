#pragma once
// Scaled dot-product attention of one block, with log-sum-exp, on CPU and CUDA.
// B batch, S queries, L keys, A query heads, G kv heads (A = n*G, consecutive query heads share a kv head), D head
// size.

#include <ATen/core/Tensor.h>

namespace tetra {

/// q [B,S,A,D], k and v [B,L,G,D] (any strides with dense D); returns [B,S,A,D] CONTIGUOUS, so that the caller can view
/// it as [B*S, A*D]. causal needs S == L. scale 0 means 1/sqrt(D). fp64 computes all in fp64; fp32 and bf16 use the
/// flash kernels (softmax statistics in fp32). Saves q, k, v, the output, and the fp32 log-sum-exp [B,A,S]; nothing of
/// size S*L, and kv heads are never expanded in what is saved.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale = 0.0);

}  // namespace tetra
