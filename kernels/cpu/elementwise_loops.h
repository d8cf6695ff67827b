#pragma once
// Rotary embedding, activations, and the rows of cross entropy.

#include "kernels/cpu/vector_math.h"

namespace tetra::cpu {
namespace {

template <typename T>
void rotate(const T* in, int64_t in_stride, T* out, int64_t out_stride, int64_t heads, int64_t half, const Acc<T>* cos,
            const Acc<T>* sin, Acc<T> sign) {
  for (int64_t head = 0; head < heads; ++head, in += in_stride, out += out_stride) {
    TETRA_SIMD
    for (int64_t i = 0; i < half; ++i) {
      const Acc<T> a = widen(in[i]), b = widen(in[half + i]), s = sign * sin[i];
      out[i] = narrow<T>(a * cos[i] - b * s);
      out[half + i] = narrow<T>(b * cos[i] + a * s);
    }
  }
}

template <typename T>
void swiglu(const T* gate, const T* up, T* y, int64_t count) {
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const Acc<T> g = widen(gate[i]);
    y[i] = narrow<T>(g * sigmoid(g) * widen(up[i]));
  }
}

template <typename T>
void swiglu_backward(const T* grad, const T* gate, const T* up, T* grad_gate, T* grad_up, int64_t count) {
  using A = Acc<T>;
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const A d = widen(grad[i]), g = widen(gate[i]), s = sigmoid(g);
    grad_up[i] = narrow<T>(d * g * s);
    grad_gate[i] = narrow<T>(d * widen(up[i]) * s * (A(1) + g * (A(1) - s)));
  }
}

template <typename T>
void gelu_exact(const T* x, T* y, int64_t count) {
  using A = Acc<T>;
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const A v = widen(x[i]);
    y[i] = narrow<T>(v * normal_cdf(v, fast_exp(A(-0.5) * v * v)));
  }
}

template <typename T>
void gelu_exact_backward(const T* grad, const T* x, T* grad_x, int64_t count) {
  using A = Acc<T>;
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const A v = widen(x[i]);
    const A e = fast_exp(A(-0.5) * v * v);
    const A pdf = A(0.39894228040143267794) * e;
    grad_x[i] = narrow<T>(widen(grad[i]) * (normal_cdf(v, e) + v * pdf));
  }
}

// (1 + tanh(u)) / 2 = sigmoid(2u): one exp, and no cancellation where x is far below zero.
template <typename A>
A gelu_tanh_argument(A v) {
  return A(1.59576912160573071176) * (v + A(0.044715) * v * v * v);
}

template <typename T>
void gelu_tanh(const T* x, T* y, int64_t count) {
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const Acc<T> v = widen(x[i]);
    y[i] = narrow<T>(v * sigmoid(gelu_tanh_argument(v)));
  }
}

template <typename T>
void gelu_tanh_backward(const T* grad, const T* x, T* grad_x, int64_t count) {
  using A = Acc<T>;
  TETRA_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const A v = widen(x[i]), s = sigmoid(gelu_tanh_argument(v));
    const A slope = A(1.59576912160573071176) * (A(1) + A(3 * 0.044715) * v * v);
    grad_x[i] = narrow<T>(widen(grad[i]) * (s + v * s * (A(1) - s) * slope));
  }
}

template <typename T>
Acc<T> row_max(const T* x, int64_t width) {
  return max_lanes(width, -std::numeric_limits<Acc<T>>::infinity(), [=](int64_t i) { return widen(x[i]); });
}

template <typename T>
Acc<T> sum_exp(const T* x, int64_t width, Acc<T> max) {
  return sum_lanes<Acc<T>>(width, [=](int64_t i) { return fast_exp(widen(x[i]) - max); });
}

template <typename T>
Acc<T> widen_one(const T* x) {
  return widen(*x);
}

template <typename T>
void softmax_row(T* x, int64_t width, Acc<T> max, Acc<T> factor) {
  TETRA_SIMD
  for (int64_t i = 0; i < width; ++i) {
    x[i] = narrow<T>(fast_exp(widen(x[i]) - max) * factor);
  }
}

template <typename T>
void narrow_one(T* x, Acc<T> value) {
  *x = narrow<T>(value);
}

}  // namespace
}  // namespace tetra::cpu
