#include "kernels/device_kernels.h"

namespace tetra {
namespace {

DeviceKernels& table() {
  static DeviceKernels kernels;
  return kernels;
}

}  // namespace

void set_cuda_kernels(const DeviceKernels& kernels) {
  table() = kernels;
}
const DeviceKernels& cuda_kernels() {
  return table();
}

}  // namespace tetra
