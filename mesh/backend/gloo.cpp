#include "mesh/backend/gloo.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "kernels/error.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"

namespace tetra {

std::shared_ptr<Fabric> make_gloo_fabric(const Place& place, const c10::intrusive_ptr<c10d::Store>&) {
  fail(
      "this process is rank {} of {} by torchrun-style variables, which CPU ranks cannot use yet; start them with "
      "mpirun, "
      "or use thread ranks: `tetra train -n {} CONFIG.yaml`",
      place.rank, place.world_size, place.world_size);
}

}  // namespace tetra
