#pragma once
// Token cross entropy over a slice of the vocabulary, in three steps, so that the caller can combine ranks between
// them. T tokens, V the local vocabulary slice. No fp32 copy of the logits is ever made. Statistics are fp32 (fp64 for
// fp64).

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tetra {

/// Labels with this value are not counted.
inline constexpr int64_t kIgnoreIndex = -100;

/// Row maxima over the local slice: logits [T, V] -> [T]; -inf where V is 0.
at::Tensor cross_entropy_row_max(const at::Tensor& logits);

/// Given row maxima over the WHOLE vocabulary: returns [2, T]: row 0 sum of exp(logit - max) over the local slice; row
/// 1 the target's logit - max where labels[t] - vocab_begin lies in the slice, else 0. labels [T] int64, kIgnoreIndex
/// allowed.
at::Tensor cross_entropy_partials(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin,
                                  const at::Tensor& row_max);

/// OVERWRITES logits with scale * (softmax - onehot), zero for ignored rows, and returns it. row_sum [T] is over the
/// whole vocabulary.
at::Tensor cross_entropy_grad_(at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin,
                               const at::Tensor& row_max, const at::Tensor& row_sum, double scale);

}  // namespace tetra
