#pragma once
// The loop table of the instruction set that the including file is compiled for.

#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/elementwise_loops.h"
#include "kernels/cpu/norm_loops.h"
#include "kernels/cpu/update_loops.h"

namespace tetra::cpu {
namespace {

template <typename T>
constexpr Loops<T> loops_of() {
  return {rms_norm<T>,
          rms_norm_backward<T>,
          layer_norm<T>,
          layer_norm_backward<T>,
          column_sum<T>,
          round_row<T>,
          rotate<T>,
          swiglu<T>,
          swiglu_backward<T>,
          gelu_exact<T>,
          gelu_exact_backward<T>,
          gelu_tanh<T>,
          gelu_tanh_backward<T>,
          row_max<T>,
          sum_exp<T>,
          widen_one<T>,
          softmax_row<T>,
          narrow_one<T>,
          sum_of_squares<T>};
}

template <typename M, typename T>
constexpr UpdateLoops<M, T> update_of() {
  return {adamw<M, T>, sgd<M, T>, lion<M, T>, accumulate<M, T>};
}

template <typename T>
constexpr AttentionLoops<T> attention_of() {
  return {attention_forward_scratch<T>, attention_forward<T>, attention_backward_scratch<T>, attention_backward<T>};
}

constexpr LoopTable loops_of_this_file() {
  return {loops_of<double>(),          loops_of<float>(),         loops_of<Bf16>(),         loops_of<Half>(),
          update_of<double, double>(), update_of<float, float>(), update_of<float, Bf16>(), update_of<float, Half>(),
          attention_of<float>(),       attention_of<Bf16>()};
}

}  // namespace
}  // namespace tetra::cpu
