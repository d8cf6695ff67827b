#include "kernels/optimizer_step.h"

#include <cmath>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "kernels/composite.h"
#include "kernels/cpu/dispatch.h"

namespace tetra {
namespace {

void check_state(const char* kernel, const at::Tensor& x, const at::Tensor& master, const char* name) {
  require(x.numel() == master.numel(), "{}: {} has sizes {}, master {}; they have to be equal", kernel, name, x.sizes(),
          master.sizes());
  cpu::require_alike(x, master, kernel, name);
  cpu::require_contiguous(x, kernel, name);
}

void check_master(const char* kernel, const at::Tensor& master, const at::Tensor& model) {
  const at::ScalarType type = master.scalar_type();
  require(type == at::kFloat || type == at::kDouble, "{}: master is {}; use float or double", kernel,
          at::toString(type));
  cpu::require_contiguous(master, kernel, "master");
  if (!model.defined()) {
    return;
  }
  const bool half = model.scalar_type() == at::kBFloat16 || model.scalar_type() == at::kHalf;
  require(model.numel() == master.numel() && model.is_contiguous() && type == at::kFloat && half,
          "{}: model copy of {} with sizes {} for master of {} with sizes {}; a contiguous bfloat16 or half copy of a "
          "float master is needed",
          kernel, at::toString(model.scalar_type()), model.sizes(), at::toString(type), master.sizes());
}

/// f(loops, M{}, T{}) for the master's type M and the copy's type T.
template <typename F>
void with_update(at::ScalarType master, at::ScalarType other, const F& f) {
  const cpu::LoopTable& table = cpu::loop_table();
  if (master == at::kDouble && other == at::kDouble) {
    f(table.update_f64, double{}, double{});
  } else if (other == at::kBFloat16) {
    f(table.update_bf16, float{}, cpu::Bf16{});
  } else if (other == at::kHalf) {
    f(table.update_f16, float{}, cpu::Half{});
  } else {
    f(table.update_f32, float{}, float{});
  }
}

at::ScalarType copy_type(const at::Tensor& master, const at::Tensor& model) {
  return model.defined() ? model.scalar_type() : master.scalar_type();
}

template <typename M>
cpu::AdamWArgs<M> adamw_args(const AdamWStep& s) {
  const double bias1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
  const double bias2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
  return {static_cast<M>(1 - s.lr * s.weight_decay),
          static_cast<M>(1 - s.beta1),
          static_cast<M>(s.beta2),
          static_cast<M>(1 - s.beta2),
          static_cast<M>(std::sqrt(bias2)),
          static_cast<M>(s.eps),
          static_cast<M>(s.lr / bias1),
          static_cast<M>(s.grad_scale)};
}

}  // namespace

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                at::Tensor& model, const AdamWStep& step) {
  const at::NoGradGuard no_grad;
  require(step.step >= 1, "adamw_step: step is {}; the first step is 1", step.step);
  check_master("adamw_step", master, model);
  check_state("adamw_step", grad, master, "grad");
  check_state("adamw_step", exp_avg, master, "exp_avg");
  check_state("adamw_step", exp_avg_sq, master, "exp_avg_sq");
  if (!cpu::on_cpu(master)) {
    composite::adamw_step(master, grad, exp_avg, exp_avg_sq, model, step);
    return;
  }
  with_update(master.scalar_type(), copy_type(master, model), [&](const auto& loops, auto m, auto t) {
    using M = decltype(m);
    using T = decltype(t);
    const auto args = adamw_args<M>(step);
    T* copy = model.defined() ? cpu::output<T>(model) : nullptr;
    cpu::share_out_elements(master.numel(), [&](int64_t begin, int64_t end) {
      loops.adamw(cpu::output<M>(master) + begin, cpu::input<M>(grad) + begin, cpu::output<M>(exp_avg) + begin,
                  cpu::output<M>(exp_avg_sq) + begin, copy != nullptr ? copy + begin : nullptr, end - begin, args);
    });
  });
}

void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& model,
              const SgdStep& step) {
  const at::NoGradGuard no_grad;
  check_master("sgd_step", master, model);
  check_state("sgd_step", grad, master, "grad");
  require(step.momentum == 0 || momentum.defined(), "sgd_step: momentum is {} but there is no buffer for it",
          step.momentum);
  if (step.momentum != 0) {
    check_state("sgd_step", momentum, master, "momentum");
  }
  if (!cpu::on_cpu(master)) {
    composite::sgd_step(master, grad, momentum, model, step);
    return;
  }
  with_update(master.scalar_type(), copy_type(master, model), [&](const auto& loops, auto m, auto t) {
    using M = decltype(m);
    using T = decltype(t);
    const cpu::SgdArgs<M> args = {static_cast<M>(step.lr),
                                  static_cast<M>(step.momentum),
                                  static_cast<M>(1 - step.dampening),
                                  static_cast<M>(step.weight_decay),
                                  static_cast<M>(step.grad_scale),
                                  step.nesterov,
                                  step.first};
    T* copy = model.defined() ? cpu::output<T>(model) : nullptr;
    M* buffer = step.momentum != 0 ? cpu::output<M>(momentum) : nullptr;
    cpu::share_out_elements(master.numel(), [&](int64_t begin, int64_t end) {
      loops.sgd(cpu::output<M>(master) + begin, cpu::input<M>(grad) + begin,
                buffer != nullptr ? buffer + begin : nullptr, copy != nullptr ? copy + begin : nullptr, end - begin,
                args);
    });
  });
}

void lion_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& model,
               const LionStep& step) {
  const at::NoGradGuard no_grad;
  check_master("lion_step", master, model);
  check_state("lion_step", grad, master, "grad");
  check_state("lion_step", exp_avg, master, "exp_avg");
  if (!cpu::on_cpu(master)) {
    composite::lion_step(master, grad, exp_avg, model, step);
    return;
  }
  with_update(master.scalar_type(), copy_type(master, model), [&](const auto& loops, auto m, auto t) {
    using M = decltype(m);
    using T = decltype(t);
    const cpu::LionArgs<M> args = {static_cast<M>(step.lr),        static_cast<M>(1 - step.lr * step.weight_decay),
                                   static_cast<M>(step.beta1),     static_cast<M>(1 - step.beta1),
                                   static_cast<M>(step.beta2),     static_cast<M>(1 - step.beta2),
                                   static_cast<M>(step.grad_scale)};
    T* copy = model.defined() ? cpu::output<T>(model) : nullptr;
    cpu::share_out_elements(master.numel(), [&](int64_t begin, int64_t end) {
      loops.lion(cpu::output<M>(master) + begin, cpu::input<M>(grad) + begin, cpu::output<M>(exp_avg) + begin,
                 copy != nullptr ? copy + begin : nullptr, end - begin, args);
    });
  });
}

double sum_of_squares(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  if (!cpu::on_cpu(x)) {
    return composite::sum_of_squares(x);
  }
  cpu::require_contiguous(x, "sum_of_squares", "the input");
  const int64_t count = x.numel(), blocks = (count + cpu::kChunk - 1) / cpu::kChunk;
  std::vector<double> sums(static_cast<size_t>(blocks));
  cpu::with_type(x.scalar_type(), "sum_of_squares", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    cpu::share_out(blocks, cpu::kChunk, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        sums[static_cast<size_t>(i)] =
            loops.sum_of_squares(cpu::input<T>(x) + i * cpu::kChunk, std::min(cpu::kChunk, count - i * cpu::kChunk));
      }
    });
  });
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

void accumulate_grad(at::Tensor& main, const at::Tensor& grad, bool first) {
  const at::NoGradGuard no_grad;
  require(main.numel() == grad.numel(), "accumulate_grad: the main gradient has sizes {}, the gradient {}",
          main.sizes(), grad.sizes());
  const bool doubles = main.scalar_type() == at::kDouble && grad.scalar_type() == at::kDouble;
  require(doubles || (main.scalar_type() == at::kFloat && grad.scalar_type() != at::kDouble),
          "accumulate_grad: {} into {}; use float for float, bfloat16 or half, and double for double",
          at::toString(grad.scalar_type()), at::toString(main.scalar_type()));
  if (!cpu::on_cpu(main) || !main.is_contiguous() || !grad.is_contiguous()) {
    first ? main.copy_(grad.view_as(main)) : main.add_(grad.view_as(main));
    return;
  }
  with_update(main.scalar_type(), grad.scalar_type(), [&](const auto& loops, auto m, auto t) {
    using M = decltype(m);
    using T = decltype(t);
    cpu::share_out_elements(main.numel(), [&](int64_t begin, int64_t end) {
      loops.accumulate(cpu::output<M>(main) + begin, cpu::input<T>(grad) + begin, end - begin, first);
    });
  });
}

}  // namespace tetra
