#pragma once
// From tensors to loops: the loops of a type, raw pointers, and work shared over the calling thread's own threads.

#include <algorithm>
#include <initializer_list>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "kernels/cpu/loops.h"
#include "kernels/error.h"

namespace tetra::cpu {

/// The element type that stands for a scalar type in the loops.
template <typename F>
auto with_type(at::ScalarType type, const char* kernel, const F& f) {
  switch (type) {
    case at::kDouble:
      return f(loop_table().f64, double{});
    case at::kFloat:
      return f(loop_table().f32, float{});
    case at::kBFloat16:
      return f(loop_table().bf16, Bf16{});
    case at::kHalf:
      return f(loop_table().f16, Half{});
    default:
      fail("{}: type {} is not one of double, float, bfloat16, half", kernel, at::toString(type));
  }
}

template <typename T>
const T* input(const at::Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}
template <typename T>
T* output(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

/// fp64 for fp64, else fp32.
inline at::ScalarType accumulate_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

/// Elements below which a second thread costs more than it saves.
inline constexpr int64_t kGrain = 16384;

/// f(begin, end) over parts of [0, count), each worth a thread; `cost` is the number of elements of one item.
template <typename F>
void share_out(int64_t count, int64_t cost, const F& f) {
  at::parallel_for(0, count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cost)), f);
}

/// Elements a thread takes at once in element-wise loops: whole cache lines, so that no two threads write one.
inline constexpr int64_t kChunk = 4096;

template <typename F>
void share_out_elements(int64_t count, const F& f) {
  share_out((count + kChunk - 1) / kChunk, kChunk,
            [&](int64_t begin, int64_t end) { f(begin * kChunk, std::min(count, end * kChunk)); });
}

/// True when the CPU loops apply to all of them.
inline bool on_cpu(const at::Tensor& x) {
  return x.device().is_cpu();
}

/// Throws unless `x` has `like`'s type and device.
inline void require_alike(const at::Tensor& x, const at::Tensor& like, const char* kernel, const char* name) {
  require(x.scalar_type() == like.scalar_type() && x.device() == like.device(),
          "{}: {} is {} on {}, the input {} on {}; they have to be equal", kernel, name, at::toString(x.scalar_type()),
          x.device().str(), at::toString(like.scalar_type()), like.device().str());
}

inline void require_contiguous(const at::Tensor& x, const char* kernel, const char* name) {
  require(x.is_contiguous(), "{}: {} of sizes {} is not contiguous; call contiguous() first", kernel, name, x.sizes());
}

}  // namespace tetra::cpu
