#pragma once
// Rows of RMSNorm, LayerNorm, and sums over rows.

#include "kernels/cpu/vector_math.h"

namespace tetra::cpu {
namespace {

template <typename T>
Acc<T> square_mean(const T* x, int64_t width) {
  const Acc<T> sum = sum_lanes<Acc<T>>(width, [=](int64_t i) {
    const Acc<T> v = widen(x[i]);
    return v * v;
  });
  return sum / static_cast<Acc<T>>(width);
}

template <typename T>
void rms_norm(const T* x, const T* weight, T* y, int64_t rows, int64_t width, double eps) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const Acc<T> scale = Acc<T>(1) / std::sqrt(square_mean(x, width) + static_cast<Acc<T>>(eps));
    TETRA_SIMD
    for (int64_t i = 0; i < width; ++i) {
      y[i] = narrow<T>(widen(narrow<T>(widen(x[i]) * scale)) * widen(weight[i]));
    }
  }
}

template <typename T>
void rms_norm_backward(const T* grad, const T* x, const T* weight, T* grad_x, Acc<T>* grad_weight, int64_t rows,
                       int64_t width, double eps) {
  using A = Acc<T>;
  for (int64_t row = 0; row < rows; ++row, grad += width, x += width, grad_x += width) {
    A sums[2];
    sum_lanes(width, sums, [=](int64_t i, A(&values)[2]) {
      const A v = widen(x[i]);
      values[0] = v * v;
      values[1] = widen(grad[i]) * widen(weight[i]) * v;
    });
    const A squares = sums[0], product = sums[1];
    const A scale = A(1) / std::sqrt(squares / static_cast<A>(width) + static_cast<A>(eps));
    const A slope = product * scale * scale / static_cast<A>(width);
    TETRA_SIMD
    for (int64_t i = 0; i < width; ++i) {
      const A v = widen(x[i]), g = widen(grad[i]);
      grad_weight[i] += g * widen(narrow<T>(v * scale));
      grad_x[i] = narrow<T>(scale * (g * widen(weight[i]) - v * slope));
    }
  }
}

template <typename T>
struct Moments {
  Acc<T> mean, scale;
};

template <typename T>
Moments<T> moments(const T* x, int64_t width, double eps) {
  using A = Acc<T>;
  const A mean = sum_lanes<A>(width, [=](int64_t i) { return widen(x[i]); }) / static_cast<A>(width);
  const A squares = sum_lanes<A>(width, [=](int64_t i) {
    const A v = widen(x[i]) - mean;
    return v * v;
  });
  return {mean, A(1) / std::sqrt(squares / static_cast<A>(width) + static_cast<A>(eps))};
}

template <typename T>
void layer_norm(const T* x, const T* weight, const T* bias, T* y, int64_t rows, int64_t width, double eps) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const Moments<T> m = moments(x, width, eps);
    TETRA_SIMD
    for (int64_t i = 0; i < width; ++i) {
      y[i] = narrow<T>((widen(x[i]) - m.mean) * m.scale * widen(weight[i]) + widen(bias[i]));
    }
  }
}

template <typename T>
void layer_norm_backward(const T* grad, const T* x, const T* weight, T* grad_x, Acc<T>* grad_weight, Acc<T>* grad_bias,
                         int64_t rows, int64_t width, double eps) {
  using A = Acc<T>;
  for (int64_t row = 0; row < rows; ++row, grad += width, x += width, grad_x += width) {
    const Moments<T> m = moments(x, width, eps);
    A sums[2];
    sum_lanes(width, sums, [=](int64_t i, A(&values)[2]) {
      values[0] = widen(grad[i]) * widen(weight[i]);
      values[1] = values[0] * (widen(x[i]) - m.mean) * m.scale;
    });
    const A sum = sums[0] / static_cast<A>(width), product = sums[1] / static_cast<A>(width);
    TETRA_SIMD
    for (int64_t i = 0; i < width; ++i) {
      const A g = widen(grad[i]), v = (widen(x[i]) - m.mean) * m.scale;
      grad_bias[i] += g;
      grad_weight[i] += g * v;
      grad_x[i] = narrow<T>(m.scale * (g * widen(weight[i]) - sum - v * product));
    }
  }
}

template <typename T>
void column_sum(const T* x, Acc<T>* sum, int64_t rows, int64_t width, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, x += stride) {
    TETRA_SIMD
    for (int64_t i = 0; i < width; ++i) {
      sum[i] += widen(x[i]);
    }
  }
}

template <typename T>
void round_row(const Acc<T>* x, T* y, int64_t count) {
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    y[i] = narrow<T>(x[i]);
  }
}

}  // namespace
}  // namespace tetra::cpu
