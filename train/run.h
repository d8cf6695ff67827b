#pragma once
// One training run on one rank, from configuration to exported model.

#include <vector>

#include "train/config.h"

namespace tetra {

class World;

/// What a run leaves behind, the same on every rank.
struct RunResult {
  std::vector<double> losses;      // mean over the counted tokens of each step's global batch
  std::vector<double> grad_norms;  // global norm of each step, before clipping
};

/// Trains as `config` says. Collective over all ranks of `world`, which all pass the same configuration. Throws Error.
RunResult run_training(const Config& config, World& world);

}  // namespace tetra
