#include "train/device.h"

#include "kernels/device_kernels.h"
#include "mesh/backend/cuda_plugin.h"

namespace tetra {

c10::Device prepare_device(const std::string& device, int local_rank) {
  if (device != "cuda") {
    return c10::kCPU;
  }
  const CudaPlugin& plugin = load_cuda_plugin();
  plugin.select_device(local_rank);
  set_cuda_kernels({plugin.rms_norm, plugin.rms_norm_backward});
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

}  // namespace tetra
