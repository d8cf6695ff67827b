// What the core finds in this library.

#include "cuda/nccl_fabric.h"
#include "cuda/rms_norm_tensor.h"
#include "mesh/backend/cuda_plugin.h"

extern "C" __attribute__((visibility("default"))) const tetra::CudaPlugin* tetra_cuda_plugin() {
  static constexpr tetra::CudaPlugin kPlugin = {
      tetra::kCudaPluginVersion,      &tetra::cuda::device_count, &tetra::cuda::select_device,
      &tetra::cuda::make_nccl_fabric, &tetra::cuda::rms_norm,     &tetra::cuda::rms_norm_backward,
  };
  return &kPlugin;
}
