#include "kernels/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cpu/row_blocks.h"

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Sum over rows, in at least fp32, rounded once.
at::Tensor bias_gradient(const at::Tensor& grad) {
  if (!cpu::on_cpu(grad)) {
    return at::sum(grad, {0}, false, cpu::accumulate_type(grad.scalar_type())).to(grad.scalar_type());
  }
  const at::Tensor rows = grad.stride(1) == 1 ? grad : grad.contiguous();
  const at::Tensor sum = cpu::with_type(grad.scalar_type(), "linear", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    using A = cpu::Acc<T>;
    const int64_t stride = rows.stride(0), width = rows.size(1);
    return cpu::sum_over_rows<A>(rows.size(0), width, 1, rows, [&](A* partial, int64_t first, int64_t count) {
      loops.column_sum(cpu::input<T>(rows) + first * stride, partial, count, width, stride);
    });
  });
  return sum.select(0, 0).to(grad.scalar_type());
}

/// W as the right factor of x: [K, N].
at::Tensor as_in_out(const at::Tensor& weight, WeightLayout layout) {
  return layout == WeightLayout::out_in ? weight.t() : weight;
}

/// The type that products are computed in. Half goes through float on a CPU: few CPUs multiply it, and ATen's loops
/// that do without are up to fifty times slower than the copies.
at::ScalarType product_type(const at::Tensor& x) {
  return cpu::on_cpu(x) && x.scalar_type() == at::kHalf ? at::kFloat : x.scalar_type();
}

/// Inputs are x, all weights, then those biases that there are; has_bias tells whose they are.
class Linear : public torch::autograd::Function<Linear> {
 public:
  static variable_list forward(AutogradContext* ctx, WeightLayout layout, const std::vector<bool>& has_bias,
                               const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
    variable_list saved = {x}, outputs;
    c10::List<bool> flags;
    size_t next_bias = 0;
    const at::ScalarType type = product_type(x);
    const at::Tensor left = x.to(type);
    for (size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor right = as_in_out(weights[i].to(type), layout);
      const at::Tensor y = has_bias[i] ? at::addmm(biases[next_bias++].to(type), left, right) : at::mm(left, right);
      outputs.push_back(y.to(x.scalar_type()));
      saved.push_back(weights[i]);
      flags.push_back(has_bias[i]);
    }
    ctx->save_for_backward(saved);
    ctx->set_materialize_grads(false);
    ctx->saved_data["in_out"] = layout == WeightLayout::in_out;
    ctx->saved_data["has_bias"] = flags;
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::ScalarType outer = saved[0].scalar_type(), type = product_type(saved[0]);
    const at::Tensor x = saved[0].to(type);
    const WeightLayout layout = ctx->saved_data["in_out"].toBool() ? WeightLayout::in_out : WeightLayout::out_in;
    const c10::List<bool> has_bias = ctx->saved_data["has_bias"].toBoolList();
    at::Tensor grad_x;
    variable_list grad_weights(grads.size()), grad_biases;
    size_t bias_edge = 1 + grads.size();  // needs_input_grad counts tensors alone
    for (size_t i = 0; i < grads.size(); ++i) {
      const at::Tensor grad = grads[i].defined() ? grads[i].to(type) : at::Tensor();
      if (grad.defined() && ctx->needs_input_grad(0)) {
        const at::Tensor right = as_in_out(saved[i + 1].to(type), layout).t();
        grad_x = grad_x.defined() ? grad_x.addmm_(grad, right) : at::mm(grad, right);
      }
      if (grad.defined() && ctx->needs_input_grad(1 + i)) {
        grad_weights[i] = (layout == WeightLayout::out_in ? at::mm(grad.t(), x) : at::mm(x.t(), grad)).to(outer);
      }
      if (has_bias[i]) {
        const bool wanted = ctx->needs_input_grad(bias_edge++) && grad.defined();
        grad_biases.push_back(wanted ? bias_gradient(grad).to(outer) : at::Tensor());
      }
    }
    variable_list result = {{}, {}, grad_x.defined() ? grad_x.to(outer) : grad_x};
    result.insert(result.end(), grad_weights.begin(), grad_weights.end());
    result.insert(result.end(), grad_biases.begin(), grad_biases.end());
    return result;
  }
};

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, WeightLayout layout) {
  const bool out_in = layout == WeightLayout::out_in;
  require(x.dim() == 2 && weight.dim() == 2 && weight.size(out_in ? 1 : 0) == x.size(1),
          "linear: input of sizes {} with weight of sizes {}; they have to be [T, K] and {}", x.sizes(), weight.sizes(),
          out_in ? "[N, K]" : "[K, N]");
  cpu::require_alike(weight, x, "linear", "weight");
  if (bias.defined()) {
    require(bias.dim() == 1 && bias.size(0) == weight.size(out_in ? 0 : 1),
            "linear: bias of sizes {} with weight of sizes {}", bias.sizes(), weight.sizes());
    cpu::require_alike(bias, x, "linear", "bias");
  }
}

}  // namespace

std::vector<at::Tensor> linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                               const std::vector<at::Tensor>& biases, WeightLayout layout) {
  require(biases.empty() || biases.size() == weights.size(),
          "linear: {} biases for {} weights; give one each (undefined for none), or none at all", biases.size(),
          weights.size());
  require(!weights.empty(), "linear: there is no weight");
  std::vector<bool> has_bias(weights.size());
  std::vector<at::Tensor> defined;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor bias = biases.empty() ? at::Tensor() : biases[i];
    check(x, weights[i], bias, layout);
    has_bias[i] = bias.defined();
    if (bias.defined()) {
      defined.push_back(bias);
    }
  }
  return Linear::apply(layout, has_bias, x, at::TensorList(weights), at::TensorList(defined));
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, WeightLayout layout) {
  return linear(x, std::vector<at::Tensor>{weight}, std::vector<at::Tensor>{bias}, layout)[0];
}

}  // namespace tetra
