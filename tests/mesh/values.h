#pragma once
// Tensors with chosen elements, and their elements as doubles.

#include <cstring>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace tetra {

inline at::Tensor make(const std::vector<double>& values, at::ScalarType type = at::kDouble) {
  at::Tensor x = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  if (!values.empty()) {
    std::memcpy(x.data_ptr(), values.data(), values.size() * sizeof(double));
  }
  return x.to(type);
}

inline std::vector<double> values(const at::Tensor& x) {
  const at::Tensor y = x.to(at::kDouble).contiguous();
  const auto* begin = static_cast<const double*>(y.const_data_ptr());
  return {begin, begin + y.numel()};
}

inline bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// Small whole numbers that differ by rank and place; sums over 8 ranks are exact in every type.
inline double sample(int rank, int64_t i) {
  return static_cast<double>((3 * rank + 5 * i + rank * i) % 11);
}

inline std::vector<double> samples(int rank, int64_t count, int64_t from = 0) {
  std::vector<double> result;
  for (int64_t i = from; i < from + count; ++i) {
    result.push_back(sample(rank, i));
  }
  return result;
}

}  // namespace tetra
