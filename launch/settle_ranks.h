#pragma once
// How many ranks a run has, settled from -n, the launcher and the configuration.

#include <cstdint>
#include <optional>

#include "launch/config_reader.h"
#include "mesh/rendezvous.h"

namespace tetra {

/// Returns the world size: what the launcher made, else `ranks` (-n), else the product of the degrees. Where nobody
/// gave parallelism.dp_replicate_size and the other degrees leave a whole factor, it becomes that factor. Throws Error
/// where the numbers disagree, where -n is given under a launcher, and where the backend does not suit the launcher.
int64_t settle_ranks(LoadedConfig& loaded, std::optional<int64_t> ranks, const Place& place);

}  // namespace tetra
