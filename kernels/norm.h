#pragma once
// Normalisation over the last dim, with autograd. T = tokens (any leading dims), H = features.

#include <ATen/core/Tensor.h>

namespace tetra {

/// RMSNorm (Zhang & Sennrich, 2019) as Llama has it: y = round(x / sqrt(mean(x^2) + eps)) * weight. The statistics are
/// taken in fp32 (fp64 for fp64), the quotient is rounded to x's type before the multiplication.
/// x [..., H] contiguous, weight [H] of x's type; returns [..., H]. Saves x alone (the statistics are recomputed).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// LayerNorm (Ba et al., 2016): x [..., H] contiguous, weight and bias [H]. Saves x alone.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

}  // namespace tetra
