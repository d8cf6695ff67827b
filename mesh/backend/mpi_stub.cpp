#include "kernels/error.h"
#include "mesh/backend/mpi.h"
#include "mesh/rendezvous.h"

namespace tetra {

std::shared_ptr<Fabric> make_mpi_fabric(const Place& place) {
  fail(
      "this process is rank {} of {} (found through {}), but Tetra was built without MPI. Install libopenmpi-dev and "
      "build again, or use thread ranks: `tetra train -n {} CONFIG.yaml` without mpirun",
      place.rank, place.world_size, place.source, place.world_size);
}

}  // namespace tetra
