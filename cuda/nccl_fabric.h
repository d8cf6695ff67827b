#pragma once
// Ranks as processes with a GPU each: groups are libtorch's ProcessGroupNCCL.

#include <memory>

namespace tetra {
class Fabric;
struct NcclRequest;
}  // namespace tetra

namespace tetra::cuda {

int device_count();
void select_device(int local_rank);

/// The current device must be this rank's (select_device).
std::shared_ptr<Fabric> make_nccl_fabric(const NcclRequest& request);

}  // namespace tetra::cuda
