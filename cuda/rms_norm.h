#pragma once
// Launchers of the RMSNorm kernels: raw pointers, so that the .cu file includes nothing of torch.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tetra::cuda {

enum class Element { fp32, bf16 };

/// x [T, H] and weight [H] on the current device. All arithmetic in fp32; x / rms is rounded to the element type before
/// it is multiplied with the weight, as kernels/norm.h says.
struct RmsNormShape {
  Element element;
  int64_t tokens;    // T
  int64_t features;  // H
  float eps;
};

/// y [T, H] = round(x / sqrt(mean(x^2) + eps)) * weight.
cudaError_t launch_rms_norm(const void* x, const void* weight, void* y, const RmsNormShape& shape, cudaStream_t stream);

/// Rows of `partial` that launch_rms_norm_backward needs. A constant for T beyond it, whatever the GPU, so that sums
/// are taken in the same order on all.
int64_t rms_norm_partial_rows(int64_t tokens);

/// grad_x [T, H] and grad_weight [H] from grad [T, H], the gradient of y. The statistics are recomputed from x.
/// `partial`: fp32 scratch [rms_norm_partial_rows(T), H].
cudaError_t launch_rms_norm_backward(const void* grad, const void* x, const void* weight, void* grad_x,
                                     void* grad_weight, float* partial, const RmsNormShape& shape, cudaStream_t stream);

}  // namespace tetra::cuda
