#pragma once
// The inner loops of the kernels on a CPU: raw pointers, one thread, built once for each instruction set. Callers share
// out rows and blocks over threads.

#include <cstdint>

namespace tetra::cpu {

/// Storage of 16-bit floats; the loops compute in float.
struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

/// The type that T is computed in: float, or double for double.
template <typename T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <typename T>
using Acc = typename Accumulate<T>::type;

/// A matrix product C[m,n] = A[m,k] * B[k,n] (+ C where `add`), row-major. For 16-bit types B holds pairs of rows
/// interleaved: element (k, n) at (k / 2) * 2 * ldb + 2 * n + k % 2.
template <typename T>
using MatrixProduct = void (*)(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                               const T* a, const T* b, float* c);

/// [batch, sequence, heads, D] with dense D.
template <typename T>
struct Heads {
  T* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  T* at(int64_t batch, int64_t row, int64_t head) const {
    return data + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

template <typename T>
struct AttentionArgs {
  int64_t queries, keys, heads, kv_heads, dim;
  float scale;
  bool causal;
  MatrixProduct<T> product;
  Heads<const T> q, k, v;
  Heads<T> out;  // forward
  float* lse;    // [B, A, S]
  // backward
  Heads<const T> saved_out, grad_out;
  Heads<T> grad_q, grad_k, grad_v;
};

/// Loops over elements of type T. Pointers to rows take the distance between rows as `stride`.
template <typename T>
struct Loops {
  using A = Acc<T>;

  void (*rms_norm)(const T* x, const T* weight, T* y, int64_t rows, int64_t width, double eps);
  /// grad_weight [width] is added to.
  void (*rms_norm_backward)(const T* grad, const T* x, const T* weight, T* grad_x, A* grad_weight, int64_t rows,
                            int64_t width, double eps);
  void (*layer_norm)(const T* x, const T* weight, const T* bias, T* y, int64_t rows, int64_t width, double eps);
  void (*layer_norm_backward)(const T* grad, const T* x, const T* weight, T* grad_x, A* grad_weight, A* grad_bias,
                              int64_t rows, int64_t width, double eps);
  /// sum [width] is added to.
  void (*column_sum)(const T* x, A* sum, int64_t rows, int64_t width, int64_t stride);
  void (*round)(const A* x, T* y, int64_t count);

  /// Rotates `heads` vectors of 2*half by the angles; sign -1 is the inverse. in may be out.
  void (*rotate)(const T* in, int64_t in_stride, T* out, int64_t out_stride, int64_t heads, int64_t half, const A* cos,
                 const A* sin, A sign);

  void (*swiglu)(const T* gate, const T* up, T* y, int64_t count);
  void (*swiglu_backward)(const T* grad, const T* gate, const T* up, T* grad_gate, T* grad_up, int64_t count);
  void (*gelu_exact)(const T* x, T* y, int64_t count);
  void (*gelu_exact_backward)(const T* grad, const T* x, T* grad_x, int64_t count);
  void (*gelu_tanh)(const T* x, T* y, int64_t count);
  void (*gelu_tanh_backward)(const T* grad, const T* x, T* grad_x, int64_t count);

  A (*row_max)(const T* x, int64_t width);
  A (*sum_exp)(const T* x, int64_t width, A max);
  A (*widen)(const T* x);
  /// x = exp(x - max) * factor
  void (*softmax_row)(T* x, int64_t width, A max, A factor);
  void (*narrow)(T* x, A value);

  double (*sum_of_squares)(const T* x, int64_t count);
};

template <typename M>
struct AdamWArgs {
  M decay, lerp_weight, beta2, one_minus_beta2, bias2_sqrt, eps, step_size, grad_scale;
};

template <typename M>
struct SgdArgs {
  M lr, momentum, one_minus_dampening, weight_decay, grad_scale;
  bool nesterov, first;
};

template <typename M>
struct LionArgs {
  M lr, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, grad_scale;
};

/// Optimizer loops: master type M, model copy of type T (may be null).
template <typename M, typename T>
struct UpdateLoops {
  void (*adamw)(M* master, const M* grad, M* exp_avg, M* exp_avg_sq, T* model, int64_t count, const AdamWArgs<M>& args);
  void (*sgd)(M* master, const M* grad, M* momentum, T* model, int64_t count, const SgdArgs<M>& args);
  void (*lion)(M* master, const M* grad, M* exp_avg, T* model, int64_t count, const LionArgs<M>& args);
  /// main += grad, or main = grad where `first`.
  void (*accumulate)(M* main, const T* grad, int64_t count, bool first);
};

/// Attention of one batch entry and one kv head with its query heads; scratch of the given number of floats.
template <typename T>
struct AttentionLoops {
  int64_t (*forward_scratch)(const AttentionArgs<T>& args);
  void (*forward)(const AttentionArgs<T>& args, int64_t batch, int64_t kv_head, float* scratch);
  int64_t (*backward_scratch)(const AttentionArgs<T>& args);
  void (*backward)(const AttentionArgs<T>& args, int64_t batch, int64_t kv_head, float* scratch);
};

/// Everything, for one instruction set.
struct LoopTable {
  Loops<double> f64;
  Loops<float> f32;
  Loops<Bf16> bf16;
  Loops<Half> f16;
  UpdateLoops<double, double> update_f64;
  UpdateLoops<float, float> update_f32;
  UpdateLoops<float, Bf16> update_bf16;
  UpdateLoops<float, Half> update_f16;
  AttentionLoops<float> attention_f32;
  AttentionLoops<Bf16> attention_bf16;
};

extern const LoopTable kDefaultLoops;
extern const LoopTable kAvx2Loops;
extern const LoopTable kAvx512Loops;

/// The table for this machine; follows ATen's choice, so ATEN_CPU_CAPABILITY applies to both.
const LoopTable& loop_table();

}  // namespace tetra::cpu
