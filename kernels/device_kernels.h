#pragma once
// Kernels of a device whose code is loaded at run time. Without them the compositions of ATen serve.

#include <utility>

#include <ATen/core/Tensor.h>

namespace tetra {

/// Forward and backward of rms_norm (norm.h), without autograd; inputs contiguous.
struct DeviceKernels {
  at::Tensor (*rms_norm)(const at::Tensor& x, const at::Tensor& weight, double eps) = nullptr;
  std::pair<at::Tensor, at::Tensor> (*rms_norm_backward)(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& weight, double eps) = nullptr;
};

/// The CUDA plug-in's kernels, the same for every rank of the process; set before the first tensor is on a GPU.
void set_cuda_kernels(const DeviceKernels& kernels);
const DeviceKernels& cuda_kernels();

}  // namespace tetra
