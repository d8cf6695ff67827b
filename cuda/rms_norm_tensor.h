#pragma once
// RMSNorm on CUDA tensors: checks, allocation and stream around the launchers of rms_norm.h.

#include <utility>

#include <ATen/core/Tensor.h>

namespace tetra::cuda {

/// See CudaPlugin in mesh/backend/cuda_plugin.h.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, double eps);

}  // namespace tetra::cuda
