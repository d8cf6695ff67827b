#pragma once
// Fused optimizer updates: one pass over memory. All tensors flat or same shape, contiguous, on one device.

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace tetra {

struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;             // 1-based
  double grad_scale = 1.0;  // gradients are multiplied by this first (clipping)
};

/// AdamW (Loshchilov & Hutter, 2019), PyTorch's order of operations. `master` is fp32 or fp64, as are moments and grad;
/// `model` is the bf16 or fp16 copy that is written from the master in the same pass, or undefined when the master is
/// the model's own parameter.
void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                at::Tensor& model, const AdamWStep& step);

struct SgdStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
  bool first;  // first step: the momentum buffer becomes the gradient
  double grad_scale = 1.0;
};

/// SGD with momentum, PyTorch's form. `momentum` is undefined where step.momentum is 0.
void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& model, const SgdStep& step);

struct LionStep {
  double lr, beta1, beta2, weight_decay;
  double grad_scale = 1.0;  // gradients are multiplied by this first (clipping)
};

/// Lion (Chen et al., 2023): with g the scaled gradient, master = master * (1 - lr * weight_decay) - lr * sign(beta1 *
/// exp_avg + (1 - beta1) * g), then exp_avg = beta2 * exp_avg + (1 - beta2) * g. The sign of 0 is 0, that of NaN is
/// NaN. Types as for adamw_step.
void lion_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& model,
               const LionStep& step);

/// Sum of squares in double, in an order that does not depend on the number of threads. Any floating type.
double sum_of_squares(const at::Tensor& x);

/// main (fp32) += grad (bf16, fp16 or fp32), or main = grad where `first`.
void accumulate_grad(at::Tensor& main, const at::Tensor& grad, bool first);

}  // namespace tetra
