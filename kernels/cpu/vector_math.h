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
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
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

/// exp within 1 ulp: 2^n * e^r with |r| <= ln2/2, Taylor's series; 2^n in two factors covers subnormals and overflow.
inline float fast_exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the nearest integer
  const float shifted = x * 1.44269504088896341f + kRound;
  const int32_t n = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float n_float = shifted - kRound;
  const float r = (x - n_float * 0.693145751953125f) - n_float * 1.42860682030941723e-6f;
  float p = 1.98412698412698413e-4f;
  p = p * r + 1.38888888888888889e-3f;
  p = p * r + 8.33333333333333333e-3f;
  p = p * r + 4.16666666666666667e-2f;
  p = p * r + 1.66666666666666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t half = n >> 1;
  return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((n - half + 127) << 23);
}

inline double fast_exp(double x) {
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * 1.44269504088896340736 + kRound;
  const int64_t n = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kRound);
  const double n_double = shifted - kRound;
  const double r = (x - n_double * 6.93147180369123816490e-1) - n_double * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // 64-bit arithmetic shift is missing below AVX-512: halve a shifted, positive number instead.
  const int64_t half = static_cast<int64_t>(static_cast<uint64_t>(n + 4096) >> 1) - 2048;
  return p * std::bit_cast<double>((half + 1023) << 52) * std::bit_cast<double>((n - half + 1023) << 52);
}

template <typename A>
A sigmoid(A x) {
  return A(1) / (A(1) + fast_exp(-x));
}

/// erf: libm's for double; for float Abramowitz & Stegun 7.1.26, within 2e-7.
inline double error_function(double x) {
  return std::erf(x);
}
inline float error_function(float x) {
  const float a = std::fabs(x);
  const float t = 1.0f / (1.0f + 0.3275911f * a);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  return std::copysign(1.0f - p * t * fast_exp(-a * a), x);
}

}  // namespace
}  // namespace tetra::cpu
