#include "kernels/activation.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/composite.h"
#include "kernels/cpu/dispatch.h"

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor swiglu_forward(const at::Tensor& gate, const at::Tensor& up) {
  if (!cpu::on_cpu(gate)) {
    return composite::swiglu(gate, up);
  }
  at::Tensor y = at::empty_like(gate);
  cpu::with_type(gate.scalar_type(), "swiglu", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    cpu::share_out_elements(gate.numel(), [&](int64_t begin, int64_t end) {
      loops.swiglu(cpu::input<T>(gate) + begin, cpu::input<T>(up) + begin, cpu::output<T>(y) + begin, end - begin);
    });
  });
  return y;
}

variable_list swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up) {
  if (!cpu::on_cpu(gate)) {
    auto [grad_gate, grad_up] = composite::swiglu_backward(grad, gate, up);
    return {grad_gate, grad_up};
  }
  at::Tensor grad_gate = at::empty_like(gate), grad_up = at::empty_like(up);
  cpu::with_type(gate.scalar_type(), "swiglu", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    cpu::share_out_elements(gate.numel(), [&](int64_t begin, int64_t end) {
      loops.swiglu_backward(cpu::input<T>(grad) + begin, cpu::input<T>(gate) + begin, cpu::input<T>(up) + begin,
                            cpu::output<T>(grad_gate) + begin, cpu::output<T>(grad_up) + begin, end - begin);
    });
  });
  return {grad_gate, grad_up};
}

class SwiGlu : public torch::autograd::Function<SwiGlu> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    return swiglu_forward(gate, up);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return swiglu_backward(grads[0].contiguous(), saved[0], saved[1]);
  }
};

const char* aten_name(Gelu kind) {
  return kind == Gelu::tanh ? "tanh" : "none";
}

at::Tensor gelu_forward(const at::Tensor& x, Gelu kind) {
  if (!cpu::on_cpu(x)) {
    return at::gelu(x, aten_name(kind));
  }
  at::Tensor y = at::empty_like(x);
  cpu::with_type(x.scalar_type(), "gelu", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    const auto loop = kind == Gelu::tanh ? loops.gelu_tanh : loops.gelu_exact;
    cpu::share_out_elements(x.numel(), [&](int64_t begin, int64_t end) {
      loop(cpu::input<T>(x) + begin, cpu::output<T>(y) + begin, end - begin);
    });
  });
  return y;
}

at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& x, Gelu kind) {
  if (!cpu::on_cpu(x)) {
    return at::gelu_backward(grad, x, aten_name(kind));
  }
  at::Tensor grad_x = at::empty_like(x);
  cpu::with_type(x.scalar_type(), "gelu", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    const auto loop = kind == Gelu::tanh ? loops.gelu_tanh_backward : loops.gelu_exact_backward;
    cpu::share_out_elements(x.numel(), [&](int64_t begin, int64_t end) {
      loop(cpu::input<T>(grad) + begin, cpu::input<T>(x) + begin, cpu::output<T>(grad_x) + begin, end - begin);
    });
  });
  return grad_x;
}

class GeluFunction : public torch::autograd::Function<GeluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Gelu kind) {
    ctx->save_for_backward({x});
    ctx->saved_data["tanh"] = kind == Gelu::tanh;
    return gelu_forward(x, kind);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Gelu kind = ctx->saved_data["tanh"].toBool() ? Gelu::tanh : Gelu::exact;
    return {gelu_backward(grads[0].contiguous(), ctx->get_saved_variables()[0], kind), {}};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  require(gate.sizes() == up.sizes(), "swiglu: gate has sizes {}, up {}; they have to be equal", gate.sizes(),
          up.sizes());
  cpu::require_alike(up, gate, "swiglu", "up");
  cpu::require_contiguous(gate, "swiglu", "gate");
  cpu::require_contiguous(up, "swiglu", "up");
  return SwiGlu::apply(gate, up);
}

at::Tensor gelu(const at::Tensor& x, Gelu kind) {
  cpu::require_contiguous(x, "gelu", "the input");
  return GeluFunction::apply(x, kind);
}

}  // namespace tetra
