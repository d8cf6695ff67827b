#pragma once
// The same mathematics as compositions of ATen operations: what runs on devices that the CPU loops do not reach, inside
// the same autograd functions. Internal to the kernels and their tests.

#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/activation.h"
#include "kernels/optimizer_step.h"
#include "kernels/rope.h"

namespace tetra::composite {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
/// Gradients of x and weight.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& weight, double eps);

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
/// Gradients of x, weight and bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& weight, double eps);

/// x [B,S,A,D] rotated by the angles of positions ([S] or [B,S]); sign -1 is the inverse.
at::Tensor rotate(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions, double sign);

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
/// Gradients of gate and up.
std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                   const at::Tensor& up);

/// Attention with autograd, of [B,S,A,D] shapes as in attention.h.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale);

at::Tensor cross_entropy_row_max(const at::Tensor& logits);
at::Tensor cross_entropy_partials(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin,
                                  const at::Tensor& row_max);
void cross_entropy_grad_(at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin, const at::Tensor& row_max,
                         const at::Tensor& row_sum, double scale);

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                at::Tensor& model, const AdamWStep& step);
void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& model, const SgdStep& step);
void lion_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& model,
               const LionStep& step);
double sum_of_squares(const at::Tensor& x);

}  // namespace tetra::composite
