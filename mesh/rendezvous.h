#pragma once
// Where this process finds its rank and peers: MPI (mpirun), Slurm (srun) or torchrun-style variables.

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tetra {

class Fabric;

/// What the environment says of this process's place; `source` is "mpi", "slurm", "torchrun" or "none".
struct Place {
  std::string source = "none";
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string master_address;  // torchrun: MASTER_ADDR
  int master_port = 0;         // torchrun: MASTER_PORT
  bool agent_store = false;    // torchrun's own agent serves the store at that address, so that rank 0 must not
};

/// Reads the place through `getenv_like` (tests hand in a map). Throws Error on half-set or contradictory variables,
/// naming them; empty counts as not set. Order: Open MPI (OMPI_COMM_WORLD_*), PMI (PMI_*), Slurm (SLURM_PROCID, ...;
/// only inside an srun step of more than one task, not in the batch script around it), torchrun (RANK, WORLD_SIZE,
/// LOCAL_RANK, MASTER_ADDR, MASTER_PORT; without LOCAL_WORLD_SIZE all ranks are taken to be on one machine).
Place read_place(const std::function<std::optional<std::string>(const std::string&)>& getenv_like);
Place read_place();

/// The fabric for that place: null for one process; for `device` "cpu" MPI under mpirun or srun and Gloo under
/// torchrun-style variables; NCCL for "cuda". Collective. Throws Error saying what is missing and what would work.
std::shared_ptr<Fabric> make_fabric(const Place& place, const std::string& device);

}  // namespace tetra
