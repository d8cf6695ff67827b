#pragma once
// The core links nothing of CUDA. What needs it is in libtetra_cuda.so, which is opened when a GPU is asked for.

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace tetra {

class Fabric;
struct Place;

/// What an NCCL fabric is made from.
struct NcclRequest {
  const Place* place;
  c10::intrusive_ptr<c10d::Store> store;  // through which the ranks find each other
  std::shared_ptr<Fabric> launcher;  // ends all ranks on abort; null: this process just ends, its launcher sees to it
};

/// The plug-in's functions. They throw tetra::Error.
struct CudaPlugin {
  int version;  // kCudaPluginVersion of the sources that it was built from
  int (*device_count)();
  /// Makes GPU `local_rank` this process's current device, and checks that it is there.
  void (*select_device)(int local_rank);
  std::shared_ptr<Fabric> (*make_nccl_fabric)(const NcclRequest& request);
  /// As kernels/norm.h's rms_norm, without autograd: x [..., H] and weight [H] contiguous, fp32 or bf16.
  at::Tensor (*rms_norm)(const at::Tensor& x, const at::Tensor& weight, double eps);
  /// Gradients of x and weight for the gradient of the result.
  std::pair<at::Tensor, at::Tensor> (*rms_norm_backward)(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& weight, double eps);
};

/// Raised whenever CudaPlugin changes.
inline constexpr int kCudaPluginVersion = 1;
/// The one symbol that is looked up: `extern "C" const tetra::CudaPlugin* tetra_cuda_plugin()`.
inline constexpr const char* kCudaPluginEntry = "tetra_cuda_plugin";

/// Opens the plug-in; later calls give the same one. `path` empty: $TETRA_CUDA_PLUGIN, else libtetra_cuda.so beside the
/// library or program that holds this function, else the linker's search path. Error saying what is missing and what
/// would work. Must come before libtorch's first question about CUDA in this process, whose answer is kept.
const CudaPlugin& load_cuda_plugin(const std::string& path = "");

}  // namespace tetra
