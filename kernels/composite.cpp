#include "kernels/composite.h"

#include <cmath>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "kernels/cross_entropy.h"

namespace tetra::composite {
namespace {

at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
at::Tensor wide(const at::Tensor& x) {
  return x.to(wide_type(x));
}

/// Sum over all dims but the last.
at::Tensor sum_rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)}).sum(0);
}

/// Which rows have their target in the local slice, and where (0 where not).
std::pair<at::Tensor, at::Tensor> local_targets(const at::Tensor& labels, int64_t vocab_begin, int64_t width) {
  const at::Tensor local = labels - vocab_begin;
  const at::Tensor here = (labels != kIgnoreIndex) & (local >= 0) & (local < width);
  return {here, at::where(here, local, at::zeros_like(local)).unsqueeze(1)};
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor v = wide(x);
  return (v * at::rsqrt(v.square().mean(-1, true) + eps)).to(x.scalar_type()) * weight;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& weight, double eps) {
  const at::Tensor v = wide(x), g = wide(grad);
  const at::Tensor scale = at::rsqrt(v.square().mean(-1, true) + eps);
  const at::Tensor unit = v * scale, slope = g * wide(weight);
  const at::Tensor grad_x = scale * (slope - unit * (slope * unit).mean(-1, true));
  const at::Tensor grad_weight = sum_rows(g * wide(unit.to(x.scalar_type())));
  return {grad_x.to(x.scalar_type()), grad_weight.to(weight.scalar_type())};
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const at::Tensor v = wide(x), centred = v - v.mean(-1, true);
  const at::Tensor unit = centred * at::rsqrt(centred.square().mean(-1, true) + eps);
  return (unit * wide(weight) + wide(bias)).to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& weight, double eps) {
  const at::Tensor v = wide(x), g = wide(grad), centred = v - v.mean(-1, true);
  const at::Tensor scale = at::rsqrt(centred.square().mean(-1, true) + eps);
  const at::Tensor unit = centred * scale, slope = g * wide(weight);
  const at::Tensor grad_x = scale * (slope - slope.mean(-1, true) - unit * (slope * unit).mean(-1, true));
  return {grad_x.to(x.scalar_type()), sum_rows(g * unit).to(weight.scalar_type()),
          sum_rows(g).to(weight.scalar_type())};
}

at::Tensor rotate(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions, double sign) {
  const auto angles = [&](const at::Tensor& values) {
    const at::Tensor rows = values.index({positions});
    return positions.dim() == 2 ? rows.unsqueeze(2) : rows.unsqueeze(0).unsqueeze(2);
  };
  const at::Tensor cos = angles(table.cos), sin = sign * angles(table.sin);
  const std::vector<at::Tensor> halves = wide(x).chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1).to(x.scalar_type());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return (at::silu(wide(gate)) * wide(up)).to(gate.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                   const at::Tensor& up) {
  const at::Tensor d = wide(grad), g = wide(gate), s = at::sigmoid(g);
  return {(d * wide(up) * s * (1 + g * (1 - s))).to(gate.scalar_type()), (d * g * s).to(up.scalar_type())};
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale) {
  const at::Tensor out = at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {},
                                                          0.0, causal, scale, q.size(2) != k.size(2));
  return out.transpose(1, 2).contiguous();
}

at::Tensor cross_entropy_row_max(const at::Tensor& logits) {
  if (logits.size(1) == 0) {
    return at::full({logits.size(0)}, -INFINITY, logits.options().dtype(wide_type(logits)));
  }
  return wide(logits.amax(1));
}

at::Tensor cross_entropy_partials(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin,
                                  const at::Tensor& row_max) {
  const at::Tensor sum = (logits - row_max.unsqueeze(1)).exp_().sum(1);
  if (logits.size(1) == 0) {
    return at::stack({sum, at::zeros_like(sum)});
  }
  const auto [here, index] = local_targets(labels, vocab_begin, logits.size(1));
  const at::Tensor target = wide(logits.gather(1, index)).squeeze(1) - row_max;
  return at::stack({sum, at::where(here, target, at::zeros_like(target))});
}

void cross_entropy_grad_(at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin, const at::Tensor& row_max,
                         const at::Tensor& row_sum, double scale) {
  if (logits.size(1) == 0) {
    return;
  }
  const auto [here, index] = local_targets(labels, vocab_begin, logits.size(1));
  at::Tensor grad = (logits - row_max.unsqueeze(1)).exp_().div_(row_sum.unsqueeze(1));
  grad.scatter_add_(1, index, here.to(grad.scalar_type()).neg().unsqueeze(1));
  grad.mul_(scale).masked_fill_((labels == kIgnoreIndex).unsqueeze(1), 0);
  logits.copy_(grad);
}

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                at::Tensor& model, const AdamWStep& s) {
  const double bias1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
  const double bias2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
  const at::Tensor g = s.grad_scale == 1.0 ? grad : grad * s.grad_scale;
  master.mul_(1 - s.lr * s.weight_decay);
  exp_avg.lerp_(g.view_as(exp_avg), 1 - s.beta1);
  exp_avg_sq.mul_(s.beta2).addcmul_(g.view_as(exp_avg_sq), g.view_as(exp_avg_sq), 1 - s.beta2);
  const at::Tensor denominator = exp_avg_sq.sqrt().div_(std::sqrt(bias2)).add_(s.eps);
  master.addcdiv_(exp_avg.view_as(master), denominator.view_as(master), -s.lr / bias1);
  if (model.defined()) {
    model.copy_(master.view_as(model));
  }
}

void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& model, const SgdStep& s) {
  at::Tensor g = (grad * s.grad_scale).view_as(master).add_(master, s.weight_decay);
  if (s.momentum != 0) {
    at::Tensor buffer = momentum.view_as(master);
    s.first ? buffer.copy_(g) : buffer.mul_(s.momentum).add_(g, 1 - s.dampening);
    g = s.nesterov ? g.add(buffer, s.momentum) : buffer;
  }
  master.add_(g, -s.lr);
  if (model.defined()) {
    model.copy_(master.view_as(model));
  }
}

void lion_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& model, const LionStep& s) {
  const at::Tensor g = (grad * s.grad_scale).view_as(exp_avg);
  const at::Tensor blend = (exp_avg * s.beta1).add_(g, 1 - s.beta1);
  const at::Tensor sign = at::where(blend.isnan(), blend, blend.sign());
  master.mul_(1 - s.lr * s.weight_decay).add_(sign.view_as(master), -s.lr);
  exp_avg.mul_(s.beta2).add_(g, 1 - s.beta2);
  if (model.defined()) {
    model.copy_(master.view_as(model));
  }
}

double sum_of_squares(const at::Tensor& x) {
  return x.to(at::kDouble).square().sum().item<double>();
}

}  // namespace tetra::composite
