#pragma once
// Optimizer steps, gradient accumulation and sums of squares.

#include "kernels/cpu/vector_math.h"

namespace tetra::cpu {
namespace {

template <bool WithModel, typename M, typename T>
void adamw_pass(M* master, const M* grad, M* exp_avg, M* exp_avg_sq, T* model, int64_t count, const AdamWArgs<M>& s) {
  const bool small_weight = s.lerp_weight < M(0.5);
  // PyTorch's lerp takes the nearer end as its base.
  const M from_avg = small_weight ? s.lerp_weight : M(1) - s.lerp_weight;
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const M g = grad[i] * s.grad_scale;
    const M gap = g - exp_avg[i];
    const M m = small_weight ? exp_avg[i] + from_avg * gap : g - gap * from_avg;
    const M v = exp_avg_sq[i] * s.beta2 + s.one_minus_beta2 * g * g;
    const M denominator = std::sqrt(v) / s.bias2_sqrt + s.eps;
    const M p = master[i] * s.decay - s.step_size * (m / denominator);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = p;
    if constexpr (WithModel) {
      model[i] = narrow<T>(p);
    }
  }
}

template <typename M, typename T>
void adamw(M* master, const M* grad, M* exp_avg, M* exp_avg_sq, T* model, int64_t count, const AdamWArgs<M>& args) {
  if (model != nullptr) {
    adamw_pass<true>(master, grad, exp_avg, exp_avg_sq, model, count, args);
  } else {
    adamw_pass<false>(master, grad, exp_avg, exp_avg_sq, model, count, args);
  }
}

template <bool WithMomentum, bool WithModel, typename M, typename T>
void sgd_pass(M* master, const M* grad, M* momentum, T* model, int64_t count, const SgdArgs<M>& s) {
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const M g = grad[i] * s.grad_scale + s.weight_decay * master[i];
    M direction = g;
    if constexpr (WithMomentum) {
      const M m = s.first ? g : momentum[i] * s.momentum + s.one_minus_dampening * g;
      momentum[i] = m;
      direction = s.nesterov ? g + s.momentum * m : m;
    }
    const M p = master[i] - s.lr * direction;
    master[i] = p;
    if constexpr (WithModel) {
      model[i] = narrow<T>(p);
    }
  }
}

template <typename M, typename T>
void sgd(M* master, const M* grad, M* momentum, T* model, int64_t count, const SgdArgs<M>& args) {
  if (momentum != nullptr && model != nullptr) {
    sgd_pass<true, true>(master, grad, momentum, model, count, args);
  } else if (momentum != nullptr) {
    sgd_pass<true, false>(master, grad, momentum, model, count, args);
  } else if (model != nullptr) {
    sgd_pass<false, true>(master, grad, momentum, model, count, args);
  } else {
    sgd_pass<false, false>(master, grad, momentum, model, count, args);
  }
}

template <bool WithModel, typename M, typename T>
void lion_pass(M* master, const M* grad, M* exp_avg, T* model, int64_t count, const LionArgs<M>& s) {
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const M g = grad[i] * s.grad_scale;
    const M blend = exp_avg[i] * s.beta1 + s.one_minus_beta1 * g;
    const M sign = blend > M(0) ? M(1) : blend < M(0) ? M(-1) : blend;  // NaN stays NaN, to be seen
    const M p = master[i] * s.decay - s.lr * sign;
    exp_avg[i] = exp_avg[i] * s.beta2 + s.one_minus_beta2 * g;
    master[i] = p;
    if constexpr (WithModel) {
      model[i] = narrow<T>(p);
    }
  }
}

template <typename M, typename T>
void lion(M* master, const M* grad, M* exp_avg, T* model, int64_t count, const LionArgs<M>& args) {
  if (model != nullptr) {
    lion_pass<true>(master, grad, exp_avg, model, count, args);
  } else {
    lion_pass<false>(master, grad, exp_avg, model, count, args);
  }
}

template <typename M, typename T>
void accumulate(M* main, const T* grad, int64_t count, bool first) {
  if (first) {
    TETRA_SIMD
    for (int64_t i = 0; i < count; ++i) {
      main[i] = static_cast<M>(widen(grad[i]));
    }
    return;
  }
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    main[i] += static_cast<M>(widen(grad[i]));
  }
}

template <typename T>
double sum_of_squares(const T* x, int64_t count) {
  return sum_lanes<double>(count, [=](int64_t i) {
    const double v = static_cast<double>(widen(x[i]));
    return v * v;
  });
}

}  // namespace
}  // namespace tetra::cpu
