#include "cuda/rms_norm_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/rms_norm.h"
#include "kernels/error.h"

namespace tetra::cuda {
namespace {

constexpr int64_t kMostRows = 0x7fffffff;  // blocks of a grid

RmsNormShape check(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto type = x.scalar_type();
  require(type == at::kFloat || type == at::kBFloat16, "rms_norm on CUDA takes float and bfloat16, not {}",
          toString(type));
  require(x.is_cuda() && x.is_contiguous() && x.dim() >= 1,
          "rms_norm: x must be a contiguous CUDA tensor, got [{}] on {}", fmt::join(x.sizes(), ", "), x.device().str());
  require(weight.device() == x.device() && weight.is_contiguous() && weight.scalar_type() == type &&
              weight.dim() == 1 && weight.size(0) == x.size(-1),
          "rms_norm: weight must be contiguous, [{}] of {} on {}; got [{}] of {} on {}", x.size(-1), toString(type),
          x.device().str(), fmt::join(weight.sizes(), ", "), toString(weight.scalar_type()), weight.device().str());
  const int64_t features = x.size(-1);
  const int64_t tokens = features == 0 ? 0 : x.numel() / features;
  require(tokens <= kMostRows, "rms_norm: {} rows are more than {}", tokens, kMostRows);
  return {type == at::kFloat ? Element::fp32 : Element::bf16, tokens, features, static_cast<float>(eps)};
}

void check_launch(cudaError_t code) {
  require(code == cudaSuccess, "the rms_norm kernel did not start: {}", cudaGetErrorString(code));
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const RmsNormShape shape = check(x, weight, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  if (shape.tokens > 0) {
    check_launch(launch_rms_norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), shape,
                                 c10::cuda::getCurrentCUDAStream().stream()));
  }
  return y;
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, double eps) {
  const RmsNormShape shape = check(x, weight, eps);
  require(grad.is_contiguous() && grad.sizes() == x.sizes() && grad.device() == x.device() &&
              grad.scalar_type() == x.scalar_type(),
          "rms_norm: the gradient must be contiguous and of x's shape [{}], type and device; it is [{}] of {} on {}",
          fmt::join(x.sizes(), ", "), fmt::join(grad.sizes(), ", "), toString(grad.scalar_type()), grad.device().str());
  const c10::cuda::CUDAGuard guard(x.device());
  if (shape.tokens == 0) {
    return {at::empty_like(x), at::zeros_like(weight)};
  }
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  at::Tensor partial = at::empty({rms_norm_partial_rows(shape.tokens), shape.features}, x.options().dtype(at::kFloat));
  check_launch(launch_rms_norm_backward(grad.data_ptr(), x.data_ptr(), weight.data_ptr(), grad_x.data_ptr(),
                                        grad_weight.data_ptr(), partial.data_ptr<float>(), shape,
                                        c10::cuda::getCurrentCUDAStream().stream()));
  return {grad_x, grad_weight};
}

}  // namespace tetra::cuda
