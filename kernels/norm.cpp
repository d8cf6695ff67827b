#include "kernels/norm.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/composite.h"
#include "kernels/cpu/row_blocks.h"
#include "kernels/device_kernels.h"

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const char* kernel, const at::Tensor& x, const at::Tensor& parameter, const char* name) {
  require(x.dim() >= 1 && parameter.dim() == 1 && parameter.size(0) == x.size(-1),
          "{}: {} has sizes {}, the input {}; {} has to be [last size of the input]", kernel, name, parameter.sizes(),
          x.sizes(), name);
  cpu::require_alike(parameter, x, kernel, name);
  cpu::require_contiguous(x, kernel, "the input");
  cpu::require_contiguous(parameter, kernel, name);
}

int64_t rows_of(const at::Tensor& x) {
  return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
}

/// The plug-in's kernel is for fp32 and bf16.
bool has_plugin_kernel(const at::Tensor& x) {
  return x.is_cuda() && cuda_kernels().rms_norm != nullptr &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (has_plugin_kernel(x)) {
    return cuda_kernels().rms_norm(x, weight, eps);
  }
  if (!cpu::on_cpu(x)) {
    return composite::rms_norm(x, weight, eps);
  }
  at::Tensor y = at::empty_like(x);
  const int64_t width = x.size(-1);
  cpu::with_type(x.scalar_type(), "rms_norm", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    cpu::share_out(rows_of(x), width, [&](int64_t begin, int64_t end) {
      loops.rms_norm(cpu::input<T>(x) + begin * width, cpu::input<T>(weight), cpu::output<T>(y) + begin * width,
                     end - begin, width, eps);
    });
  });
  return y;
}

variable_list rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (has_plugin_kernel(x)) {
    auto [grad_x, grad_weight] = cuda_kernels().rms_norm_backward(grad, x, weight, eps);
    return {grad_x, grad_weight};
  }
  if (!cpu::on_cpu(x)) {
    auto [grad_x, grad_weight] = composite::rms_norm_backward(grad, x, weight, eps);
    return {grad_x, grad_weight};
  }
  at::Tensor grad_x = at::empty_like(x);
  const int64_t width = x.size(-1);
  const at::Tensor sum = cpu::with_type(x.scalar_type(), "rms_norm", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    using A = cpu::Acc<T>;
    return cpu::sum_over_rows<A>(rows_of(x), width, 1, x, [&](A* partial, int64_t first, int64_t rows) {
      const int64_t at = first * width;
      loops.rms_norm_backward(cpu::input<T>(grad) + at, cpu::input<T>(x) + at, cpu::input<T>(weight),
                              cpu::output<T>(grad_x) + at, partial, rows, width, eps);
    });
  });
  return {grad_x, sum.select(0, 0).to(weight.scalar_type())};
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    return rms_norm_forward(x, weight, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result =
        rms_norm_backward(grads[0].contiguous(), saved[0], saved[1], ctx->saved_data["eps"].toDouble());
    result.emplace_back();
    return result;
  }
};

at::Tensor layer_norm_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  if (!cpu::on_cpu(x)) {
    return composite::layer_norm(x, weight, bias, eps);
  }
  at::Tensor y = at::empty_like(x);
  const int64_t width = x.size(-1);
  cpu::with_type(x.scalar_type(), "layer_norm", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    cpu::share_out(rows_of(x), width, [&](int64_t begin, int64_t end) {
      loops.layer_norm(cpu::input<T>(x) + begin * width, cpu::input<T>(weight), cpu::input<T>(bias),
                       cpu::output<T>(y) + begin * width, end - begin, width, eps);
    });
  });
  return y;
}

variable_list layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!cpu::on_cpu(x)) {
    auto [grad_x, grad_weight, grad_bias] = composite::layer_norm_backward(grad, x, weight, eps);
    return {grad_x, grad_weight, grad_bias};
  }
  at::Tensor grad_x = at::empty_like(x);
  const int64_t width = x.size(-1);
  const at::Tensor sums = cpu::with_type(x.scalar_type(), "layer_norm", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    using A = cpu::Acc<T>;
    return cpu::sum_over_rows<A>(rows_of(x), width, 2, x, [&](A* partial, int64_t first, int64_t rows) {
      const int64_t at = first * width;
      loops.layer_norm_backward(cpu::input<T>(grad) + at, cpu::input<T>(x) + at, cpu::input<T>(weight),
                                cpu::output<T>(grad_x) + at, partial, partial + width, rows, width, eps);
    });
  });
  return {grad_x, sums.select(0, 0).to(weight.scalar_type()), sums.select(0, 1).to(weight.scalar_type())};
}

class LayerNorm : public torch::autograd::Function<LayerNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            double eps) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    return layer_norm_forward(x, weight, bias, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result =
        layer_norm_backward(grads[0].contiguous(), saved[0], saved[1], ctx->saved_data["eps"].toDouble());
    result.emplace_back();
    return result;
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check("rms_norm", x, weight, "weight");
  return RmsNorm::apply(x, weight, eps);
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  check("layer_norm", x, weight, "weight");
  check("layer_norm", x, bias, "bias");
  return LayerNorm::apply(x, weight, bias, eps);
}

}  // namespace tetra
