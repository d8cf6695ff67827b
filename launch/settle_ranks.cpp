#include "launch/settle_ranks.h"

#include "kernels/error.h"

namespace tetra {
namespace {

const char* launcher_name(const Place& place) {
  return place.source == "mpi" ? "mpirun" : place.source == "slurm" ? "srun" : "torchrun-style variables";
}

/// "tp_size 2 x dp_replicate_size 1", of those that are not 1 or were given.
std::string degrees_text(const LoadedConfig& loaded) {
  std::vector<std::string> factors;
  for (Axis axis : kAxes) {
    const int64_t degree = loaded.config.parallelism.degrees.of(axis);
    const std::string name = fmt::format("{}_size", axis_name(axis));
    if (degree != 1 || loaded.given("parallelism." + name)) {
      factors.push_back(fmt::format("{} {}", name, degree));
    }
  }
  return factors.empty() ? "all degrees are 1" : fmt::format("{}", fmt::join(factors, " x "));
}

void check_backend(const std::string& backend, const Place& place, int64_t world_size) {
  if (world_size == 1 || backend == "auto") {
    return;
  }
  const bool launched = place.source != "none";
  require(
      backend != "local" || !launched,
      "parallelism.backend local: ranks are threads of one process, but {} started {} processes; use auto, or start "
      "tetra train -n {} by itself",
      launcher_name(place), place.world_size, world_size);
  require(backend == "local" || launched,
          "parallelism.backend {}: ranks are processes, but no launcher started this one; use auto, or mpirun -n {} "
          "tetra train",
          backend, world_size);
  require(
      backend != "mpi" || place.source != "torchrun",
      "parallelism.backend mpi: this process was started with {}, not by MPI; use auto, or mpirun -n {} tetra train",
      launcher_name(place), world_size);
}

}  // namespace

int64_t settle_ranks(LoadedConfig& loaded, std::optional<int64_t> ranks, const Place& place) {
  Degrees& degrees = loaded.config.parallelism.degrees;
  const bool launched = place.source != "none";
  require(!launched || !ranks, "-n {}: {} already started this process as rank {} of {}; leave out -n",
          ranks.value_or(0), launcher_name(place), place.rank, place.world_size);
  const int64_t product = degrees.world_size();
  const int64_t world_size = launched ? place.world_size : ranks.value_or(product);
  const bool may_fill = !loaded.given("parallelism.dp_replicate_size") && world_size % product == 0;
  if (may_fill) {
    degrees.dp_replicate *= world_size / product;
  }
  const std::string said = launched ? fmt::format("{} started {} ranks", launcher_name(place), world_size)
                                    : fmt::format("-n {}", world_size);
  require(may_fill || world_size == product,
          "{}, but the configuration makes {} ({}); use {} ranks{}, or change a degree", said, product,
          degrees_text(loaded), product, loaded.given("parallelism.dp_replicate_size") ? "" : " or a multiple of it");
  require(world_size <= 1024 || launched, "{} thread ranks are too many for one process; at most 1024", world_size);
  check_degrees(degrees, world_size);
  check_backend(loaded.config.parallelism.backend, place, world_size);
  return world_size;
}

}  // namespace tetra
