#pragma once
// Scalar functions that compilers turn into vector code inside simd loops. Included by the per-instruction-set files
// alone, so everything has internal linkage: a function built for AVX-512 must never be shared with the others.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/loops.h"

#define TETRA_SIMD _Pragma("omp simd")

namespace tetra::cpu {
namespace {

inline float widen(float x) {
  return x;
}
inline double widen(double x) {
  return x;
}
inline float widen(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
inline float widen(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t rest = x.bits & 0x7fff;
  const float small = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
  const uint32_t normal = (rest << 13) + (112u << 23);
  const uint32_t special = (rest << 13) + (224u << 23);
  const uint32_t magnitude = rest >= 0x7c00 ? special : rest >= 0x0400 ? normal : std::bit_cast<uint32_t>(small);
  return std::bit_cast<float>(sign | magnitude);
}

/// Rounds to nearest, ties to even.
template <typename T>
T narrow(Acc<T> x);
template <>
inline float narrow<float>(float x) {
  return x;
}
template <>
inline double narrow<double>(double x) {
  return x;
}
template <>
inline Bf16 narrow<Bf16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(x != x ? 0x7fc0u : rounded)};
}
template <>
inline Half narrow<Half>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Subnormal halves: the last bit of 0.5f weighs 2^-24, so adding 0.5 rounds in hardware.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t rest = magnitude >= 0x477ff000u ? special : magnitude >= 0x38800000u ? normal : small;
  return {static_cast<uint16_t>(sign | rest)};
}

/// exp within 1 ulp: 2^n * e^r with |r| <= ln2/2 and Taylor's series; 0 where the result would be nearly subnormal. n
/// is read from the low bits of a sum with 1.5 * 2^23, whose own low bits are zero; one more bias makes it the exponent
/// of 2^n.
inline float fast_exp(float x) {
  constexpr float kRound = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 126u) << 23);
  const float r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  float p = 2 * 1.98412698412698413e-4f;  // all doubled, so that 2^(n-1) never overflows before the result does
  p = p * r + 2 * 1.38888888888888889e-3f;
  p = p * r + 2 * 8.33333333333333333e-3f;
  p = p * r + 2 * 4.16666666666666667e-2f;
  p = p * r + 2 * 1.66666666666666667e-1f;
  p = p * r + 1.0f;
  p = p * r + 2.0f;
  p = p * r + 2.0f;
  p *= power;
  p = x < -86.6f ? 0.0f : p;
  return x > 88.7228f ? std::numeric_limits<float>::infinity() : p;
}

inline double fast_exp(double x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * 1.44269504088896340736 + kRound;
  const double n = shifted - kRound;
  const double power = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1022u) << 52);
  const double r = (x - n * 6.93147180369123816490e-1) - n * 1.90821492927058770002e-10;
  double p = 2.0 / 6227020800.0;
  p = p * r + 2.0 / 479001600.0;
  p = p * r + 2.0 / 39916800.0;
  p = p * r + 2.0 / 3628800.0;
  p = p * r + 2.0 / 362880.0;
  p = p * r + 2.0 / 40320.0;
  p = p * r + 2.0 / 5040.0;
  p = p * r + 2.0 / 720.0;
  p = p * r + 2.0 / 120.0;
  p = p * r + 2.0 / 24.0;
  p = p * r + 2.0 / 6.0;
  p = p * r + 1.0;
  p = p * r + 2.0;
  p = p * r + 2.0;
  p *= power;
  p = x < -707.7 ? 0.0 : p;
  return x > 709.782 ? std::numeric_limits<double>::infinity() : p;
}

template <typename A>
A sigmoid(A x) {
  return A(1) / (A(1) + fast_exp(-x));
}

/// The normal distribution's cumulative function, given e = exp(-x^2/2), which its density needs too. libm's erf for
/// double; for float Abramowitz & Stegun 7.1.26, within 1e-7.
inline double normal_cdf(double x, double) {
  return 0.5 * std::erfc(x * -0.70710678118654752440);
}
inline float normal_cdf(float x, float e) {
  const float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * std::fabs(x));
  float p = 0.5f * 1.061405429f;
  p = p * t - 0.5f * 1.453152027f;
  p = p * t + 0.5f * 1.421413741f;
  p = p * t - 0.5f * 0.284496736f;
  p = p * t + 0.5f * 0.254829592f;
  const float tail = p * t * e;
  return x > 0.0f ? 1.0f - tail : tail;
}

/// Reductions run in this many lanes, added pairwise at the end: the order of a sum depends on its length alone, not on
/// the instruction set. (A simd reduction clause would add the lanes one by one, which costs as much as a short row.)
constexpr int kLanes = 32;

/// Adds f's N values over i = 0 .. count-1: f(i, values).
template <int N, typename A, typename F>
void sum_lanes(int64_t count, A (&sums)[N], const F& f) {
  A lanes[N][kLanes] = {};
  const auto add = [&](int64_t i, int lane) {
    A values[N];
    f(i, values);
    for (int n = 0; n < N; ++n) {
      lanes[n][lane] += values[n];
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    TETRA_SIMD
    for (int lane = 0; lane < kLanes; ++lane) {
      add(i + lane, lane);
    }
  }
  const int rest = static_cast<int>(count - i);
  TETRA_SIMD
  for (int lane = 0; lane < rest; ++lane) {
    add(i + lane, lane);
  }
  for (int n = 0; n < N; ++n) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) {
        lanes[n][lane] += lanes[n][lane + half];
      }
    }
    sums[n] = lanes[n][0];
  }
}

/// The same for one sum: f(i) is its value.
template <typename A, typename F>
A sum_lanes(int64_t count, const F& f) {
  A sums[1];
  sum_lanes(count, sums, [&](int64_t i, A(&values)[1]) { values[0] = f(i); });
  return sums[0];
}

/// The largest of `start` and f(i) over i = 0 .. count-1.
template <typename A, typename F>
A max_lanes(int64_t count, A start, const F& f) {
  A lanes[kLanes];
  for (A& lane : lanes) {
    lane = start;
  }
  const auto take = [&](int64_t i, int lane) {
    const A v = f(i);
    lanes[lane] = v > lanes[lane] ? v : lanes[lane];
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    TETRA_SIMD
    for (int lane = 0; lane < kLanes; ++lane) {
      take(i + lane, lane);
    }
  }
  for (int lane = 0; i + lane < count; ++lane) {
    take(i + lane, lane);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
    }
  }
  return lanes[0];
}

}  // namespace
}  // namespace tetra::cpu
