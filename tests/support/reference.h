#pragma once
// Trajectories that plain PyTorch and transformers gave, and a way to run the same training on any layout.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "mesh/fabric.h"
#include "mesh/world.h"
#include "train/config.h"
#include "train/trainer.h"

namespace tetra::testing {

/// What one training run gave, whatever the layout.
struct Trajectory {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<int64_t> tokens;
  struct Weight {
    double sum, l2;
  };
  std::map<std::string, Weight> weights;  // after the last step, by global name
  std::vector<double> probe;              // logits of tokens[0][:2], last position, first 8 entries of the vocabulary
};

/// A folder below tests/reference.
struct Reference {
  std::string folder;
  Config config;  // one rank, one micro-batch
  Trajectory expected;
};
Reference load_reference(const std::string& name);

/// Degrees and the rest of a layout; micro_batches is per data rank, as far as the batch can be divided so.
struct Layout {
  int64_t dp = 1;  // dp_replicate
  int64_t shard = 1;
  int64_t tp = 1;
  bool sequence_parallel = false;
  int64_t micro_batches = 1;
  int64_t zero_stage = 3;

  int64_t world_size() const { return dp * shard * tp; }
  std::string name() const;
};
Config apply(Config config, const Layout& layout);

/// Trains on one rank of `world`; collective. `before` sees the trainer before the first step.
Trajectory train(const Config& config, World& world, const std::function<void(Trainer&)>& before = {});
/// Trains on thread ranks and returns what rank 0 saw.
Trajectory train_local(const Config& config, const std::function<void(World&)>& prepare = {});

/// The largest relative errors: losses and norms each by itself, weights by their norm, probe logits by their largest.
struct Errors {
  double loss = 0, norm = 0, weights = 0, probe = 0;
  bool within(double tolerance, double weight_tolerance) const;
};
Errors compare(const Trajectory& got, const Trajectory& expected);
std::ostream& operator<<(std::ostream& out, const Errors& errors);

}  // namespace tetra::testing
