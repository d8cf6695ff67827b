#pragma once
// Matrix products with a backward that can be split, for one or several weights that share an input.

#include <vector>

#include <ATen/core/Tensor.h>

namespace tetra {

/// How a weight lies in memory: Linear's [out, in] or Conv1D's (GPT-2) [in, out].
enum class WeightLayout { out_in, in_out };

/// y_i = x * W_i^T (+ b_i): x [T, K] contiguous; W_i [N_i, K] (or [K, N_i] for in_out); b_i [N_i] or undefined.
/// x is saved once however many weights share it, and the weights' input gradients are summed inside the matrix
/// product. Gradients of T-dim reductions (bias) accumulate in fp32 for bf16.
std::vector<at::Tensor> linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                               const std::vector<at::Tensor>& biases, WeightLayout layout = WeightLayout::out_in);

/// The same for one weight.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                  WeightLayout layout = WeightLayout::out_in);

}  // namespace tetra
