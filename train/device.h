#pragma once
// Where a rank's tensors live.

#include <string>

#include <c10/core/Device.h>

namespace tetra {

/// "cpu" (or "auto") or "cuda". For cuda the plug-in is loaded, GPU `local_rank` of this machine becomes the process's
/// own, and its kernels are put to use. Throws Error saying what is missing.
c10::Device prepare_device(const std::string& device, int local_rank);

}  // namespace tetra
