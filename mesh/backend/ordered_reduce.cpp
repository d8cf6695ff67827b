#include "mesh/backend/ordered_reduce.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "kernels/error.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TETRA_HAS_AVX2 1
#endif
#define TETRA_INLINE inline __attribute__((always_inline))

namespace tetra {
namespace {

// Elements accumulated before the next inputs are looked at, and inputs read side by side: the processor's prefetching
// likes a few long streams better than many short ones, by a factor of two.
constexpr int64_t kBlock = 256;
constexpr size_t kStreams = 4;

template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;

template <ReduceOp op, typename S>
TETRA_INLINE S combine(S a, S b) {
  if constexpr (op == ReduceOp::max) {
    return ((a > b) | (a != a)) ? a : b;
  } else if constexpr (op == ReduceOp::min) {
    return ((a < b) | (a != a)) ? a : b;
  } else if constexpr (std::is_same_v<S, bool>) {
    return a | b;
  } else if constexpr (std::is_integral_v<S>) {
    using U = std::make_unsigned_t<S>;  // wraps around, as torch's sums do
    return static_cast<S>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename T>
TETRA_INLINE Sum<T> widen(T x) {
  return static_cast<Sum<T>>(x);
}

template <>
TETRA_INLINE float widen(c10::BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.x) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

template <typename T>
TETRA_INLINE T narrow(Sum<T> x) {
  return static_cast<T>(x);
}

// Round to nearest even without a branch, so that the loop vectorises.
template <>
TETRA_INLINE c10::BFloat16 narrow<c10::BFloat16>(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(nan ? 0x7fc0u : rounded), c10::BFloat16::from_bits()};
}

#ifdef TETRA_HAS_AVX2
// gcc converts halves one by one unless told; `done` elements are handled here, the caller does the rest.
__attribute__((target("avx2,f16c"))) int64_t widen_halves(float* to, const c10::Half* from, int64_t count) {
  int64_t done = 0;
  for (; done + 8 <= count; done += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done));
    _mm256_storeu_ps(to + done, _mm256_cvtph_ps(h));
  }
  return done;
}

__attribute__((target("avx2,f16c"))) int64_t narrow_floats(c10::Half* to, const float* from, int64_t count) {
  int64_t done = 0;
  for (; done + 8 <= count; done += 8) {
    const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(from + done), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + done), h);
  }
  return done;
}
#endif

template <typename T, bool avx2>
TETRA_INLINE void load(Sum<T>* __restrict to, const T* __restrict from, int64_t count) {
  int64_t i = 0;
#ifdef TETRA_HAS_AVX2
  if constexpr (avx2 && std::is_same_v<T, c10::Half>) {
    i = widen_halves(to, from, count);
  }
#endif
  for (; i < count; ++i) {
    to[i] = widen<T>(from[i]);
  }
}

template <typename T, bool avx2>
TETRA_INLINE void store(T* __restrict to, const Sum<T>* __restrict from, int64_t count) {
  int64_t i = 0;
#ifdef TETRA_HAS_AVX2
  if constexpr (avx2 && std::is_same_v<T, c10::Half>) {
    i = narrow_floats(to, from, count);
  }
#endif
  for (; i < count; ++i) {
    to[i] = narrow<T>(from[i]);
  }
}

// sum = (sum, or nothing if `first`) and inputs[0], inputs[1], ... of `streams` inputs from element `begin` on.
template <typename T, ReduceOp op, bool avx2, size_t streams, bool first>
TETRA_INLINE void accumulate(Sum<T>* __restrict sum, const void* const* inputs, int64_t begin, int64_t count) {
  const T* from[streams];
  for (size_t s = 0; s < streams; ++s) {
    from[s] = static_cast<const T*>(inputs[s]) + begin;
  }
  if constexpr (std::is_same_v<T, c10::Half>) {
    alignas(64) float wide[kBlock];
    for (size_t s = 0; s < streams; ++s) {
      load<T, avx2>(first && s == 0 ? sum : wide, from[s], count);
      for (int64_t i = 0; i < count && !(first && s == 0); ++i) {
        sum[i] = combine<op>(sum[i], wide[i]);
      }
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      Sum<T> x = first ? widen<T>(from[0][i]) : combine<op>(sum[i], widen<T>(from[0][i]));
      for (size_t s = 1; s < streams; ++s) {
        x = combine<op>(x, widen<T>(from[s][i]));
      }
      sum[i] = x;
    }
  }
}

template <typename T, ReduceOp op, bool avx2, bool first>
TETRA_INLINE size_t accumulate_some(Sum<T>* sum, const void* const* inputs, size_t left, int64_t begin, int64_t count) {
  if (left >= kStreams) {
    accumulate<T, op, avx2, kStreams, first>(sum, inputs, begin, count);
    return kStreams;
  }
  if (left == 3) {
    accumulate<T, op, avx2, 3, first>(sum, inputs, begin, count);
  } else if (left == 2) {
    accumulate<T, op, avx2, 2, first>(sum, inputs, begin, count);
  } else {
    accumulate<T, op, avx2, 1, first>(sum, inputs, begin, count);
  }
  return left;
}

template <typename T, ReduceOp op, bool avx2>
TETRA_INLINE void reduce_all(void* out, const void* const* inputs, size_t ranks, int64_t count) {
  alignas(64) Sum<T> sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    size_t done = accumulate_some<T, op, avx2, true>(sum, inputs, ranks, begin, size);
    while (done < ranks) {
      std::atomic_signal_fence(std::memory_order_seq_cst);  // or gcc swaps the loops, three times slower
      done += accumulate_some<T, op, avx2, false>(sum, inputs + done, ranks - done, begin, size);
    }
    store<T, avx2>(static_cast<T*>(out) + begin, sum, size);
  }
}

template <typename T, ReduceOp op>
void reduce_plain(void* out, const void* const* inputs, size_t ranks, int64_t count) {
  reduce_all<T, op, false>(out, inputs, ranks, count);
}

#ifdef TETRA_HAS_AVX2
template <typename T, ReduceOp op>
__attribute__((target("avx2,f16c"))) void reduce_avx2(void* out, const void* const* inputs, size_t ranks,
                                                      int64_t count) {
  reduce_all<T, op, true>(out, inputs, ranks, count);
}
#endif

template <typename T, ReduceOp op>
void reduce_as(void* out, const void* const* inputs, size_t ranks, int64_t count) {
#ifdef TETRA_HAS_AVX2
  static const bool has_avx2 = __builtin_cpu_supports("avx2");  // every such processor has f16c too
  if (has_avx2) {
    return reduce_avx2<T, op>(out, inputs, ranks, count);
  }
#endif
  reduce_plain<T, op>(out, inputs, ranks, count);
}

template <typename T>
void reduce_typed(void* out, const std::vector<const void*>& inputs, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_as<T, ReduceOp::sum>(out, inputs.data(), inputs.size(), count);
    case ReduceOp::max:
      return reduce_as<T, ReduceOp::max>(out, inputs.data(), inputs.size(), count);
    case ReduceOp::min:
      return reduce_as<T, ReduceOp::min>(out, inputs.data(), inputs.size(), count);
  }
}

}  // namespace

void ordered_reduce(void* out, const std::vector<const void*>& inputs, int64_t count, at::ScalarType type,
                    ReduceOp op) {
  require(!inputs.empty(), "ordered_reduce: no inputs");
  switch (type) {
    case at::kFloat:
      return reduce_typed<float>(out, inputs, count, op);
    case at::kDouble:
      return reduce_typed<double>(out, inputs, count, op);
    case at::kBFloat16:
      return reduce_typed<c10::BFloat16>(out, inputs, count, op);
    case at::kHalf:
      return reduce_typed<c10::Half>(out, inputs, count, op);
    case at::kChar:
      return reduce_typed<int8_t>(out, inputs, count, op);
    case at::kByte:
      return reduce_typed<uint8_t>(out, inputs, count, op);
    case at::kShort:
      return reduce_typed<int16_t>(out, inputs, count, op);
    case at::kInt:
      return reduce_typed<int32_t>(out, inputs, count, op);
    case at::kLong:
      return reduce_typed<int64_t>(out, inputs, count, op);
    case at::kBool:
      return reduce_typed<bool>(out, inputs, count, op);
    default:
      fail("reduction of {}: use float, double, bfloat16, half, an integer type or bool", c10::toString(type));
  }
}

}  // namespace tetra
