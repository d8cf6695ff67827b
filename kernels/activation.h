#pragma once
// Fused element-wise activations of the feed-forward blocks, with autograd. T = tokens, F = features.

#include <ATen/core/Tensor.h>

namespace tetra {

/// SwiGLU (Shazeer, 2020): silu(gate) * up. gate, up [T, F] contiguous, equal types. Saves gate and up alone.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

enum class Gelu { exact, tanh };

/// GELU (Hendrycks & Gimpel, 2016): `exact` uses erf, `tanh` the approximation (gelu_new, gelu_pytorch_tanh). Saves x.
at::Tensor gelu(const at::Tensor& x, Gelu kind);

}  // namespace tetra
