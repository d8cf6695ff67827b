// For each collective in a path: leave it out, and the trajectory is wrong. The sites are those that a run really used,
// so a new one is covered without a line here.

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/reference.h"

namespace tetra::testing {
namespace {

std::set<std::string> sites_used(const Config& config) {
  std::set<std::string> sites;
  std::mutex mutex;
  WorldOptions options;
  options.degrees = config.parallelism.degrees;
  run_local_ranks(static_cast<int>(options.degrees.world_size()), options, [&](World& world) {
    Trainer trainer(config, world);
    for (int step = 0; step < 2; ++step) {
      trainer.step();
    }
    const std::lock_guard lock(mutex);
    for (const auto& [key, tally] : world.ledger().tallies()) {
      sites.insert(key.site);
    }
  });
  return sites;
}

// Loss, norm or final weights must be off by more than the tolerance that the whole table keeps; a run that ends with
// an error (ranks that disagree about a loss that is not finite) has been noticed as well.
bool is_noticed(const Reference& reference, const Layout& layout, const std::string& site) {
  try {
    const auto drop = [&](World& world) { world.ledger().dropped_site = site; };
    return !compare(train_local(apply(reference.config, layout), drop), reference.expected).within(1e-10, 1e-10);
  } catch (const std::exception&) {
    return true;
  }
}

class EveryCollective : public ::testing::TestWithParam<std::pair<const char*, Layout>> {};

TEST_P(EveryCollective, IsMissedWhenItIsLeftOut) {
  const auto& [model, layout] = GetParam();
  const Reference reference = load_reference(model);
  const auto sites = sites_used(apply(reference.config, layout));
  EXPECT_GE(sites.size(), 6U);
  for (const std::string& site : sites) {
    EXPECT_TRUE(is_noticed(reference, layout, site))
        << "without " << site << " the trajectory of " << model << " on " << layout.name() << " is the same";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Paths, EveryCollective,
    ::testing::Values(std::pair{"llama_masked", Layout{.dp = 2, .tp = 2}},
                      std::pair{"llama_masked", Layout{.dp = 2, .tp = 2, .sequence_parallel = true}},
                      std::pair{"llama_masked", Layout{.dp = 2, .shard = 2, .micro_batches = 2, .zero_stage = 2}},
                      std::pair{"llama_masked", Layout{.dp = 2, .shard = 2, .micro_batches = 2}},
                      std::pair{"gpt2", Layout{.shard = 2, .tp = 2, .sequence_parallel = true}},
                      std::pair{"llama_odd_vocab", Layout{.tp = 8, .sequence_parallel = true}},
                      std::pair{"gpt2", Layout{.dp = 2, .tp = 2, .sequence_parallel = true}}),
    [](const auto& info) {
      const std::string name = std::string(info.param.first) + "_" + info.param.second.name();
      return name.substr(0, name.rfind("_x"));
    });

}  // namespace
}  // namespace tetra::testing
