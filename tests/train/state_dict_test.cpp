// Full and local state dictionaries, as FSDP's users know them.

#include <string>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "parallel/data/state_dict.h"
#include "tests/support/reference.h"
#include "tests/support/synthetic.h"

namespace tetra::testing {
namespace {

void on_ranks(const Config& config, const std::function<void(Trainer&, World&)>& body) {
  WorldOptions options;
  options.degrees = config.parallelism.degrees;
  run_local_ranks(static_cast<int>(options.degrees.world_size()), options, [&](World& world) {
    Trainer trainer(config, world);
    body(trainer, world);
  });
}

class StateDicts : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  Config config_ = small_config({.extra = R"("tie_word_embeddings": true)", .vocab_size = 53, .batch = 8}, folder_);
};

// Taken on one layout, it is what one rank has, and goes into another layout.
TEST_F(StateDicts, FullOnesFitEveryLayout) {
  StateDict one;
  on_ranks(config_, [&](Trainer& trainer, World&) { one = full_state(trainer.state(), &trainer.optimizer(), true); });
  for (const Layout& layout : {Layout{.shard = 3}, Layout{.dp = 2, .shard = 2, .tp = 2, .zero_stage = 1},
                               Layout{.shard = 2, .tp = 4, .sequence_parallel = true}}) {
    StateDict trained;
    on_ranks(apply(config_, layout), [&](Trainer& trainer, World& world) {
      const auto start = full_state(trainer.state(), &trainer.optimizer(), world.is_main_process());
      EXPECT_EQ(start.empty(), !world.is_main_process());
      for (const auto& [name, tensor] : start) {
        EXPECT_TRUE(at::equal(tensor, one.at(name))) << name << " on " << layout.name();
      }
      trainer.step();
      auto after = full_state(trainer.state(), &trainer.optimizer(), true);
      if (world.is_main_process()) {
        trained = after;
      }
    });
    on_ranks(apply(config_, {.dp = 2, .tp = 2}), [&](Trainer& trainer, World&) {
      load_full_state(trainer.state(), &trainer.optimizer(), trained);
      for (const auto& [name, tensor] : full_state(trainer.state(), &trainer.optimizer(), true)) {
        EXPECT_TRUE(at::equal(tensor, trained.at(name))) << name;
      }
    });
  }
}

TEST_F(StateDicts, LocalOnesFitTheirOwnLayoutAlone) {
  const Config config = apply(config_, {.shard = 2, .tp = 2});
  std::vector<StateDict> saved(4);
  on_ranks(config, [&](Trainer& trainer, World& world) {
    trainer.step();
    saved[static_cast<size_t>(world.rank())] = local_state(trainer.state(), &trainer.optimizer());
  });
  on_ranks(config, [&](Trainer& trainer, World& world) {
    const StateDict& mine = saved[static_cast<size_t>(world.rank())];
    load_local_state(trainer.state(), &trainer.optimizer(), mine);
    for (const auto& [name, tensor] : local_state(trainer.state(), &trainer.optimizer())) {
      EXPECT_TRUE(at::equal(tensor, mine.at(name))) << name;
    }
  });
  on_ranks(config_, [&](Trainer& trainer, World&) {
    EXPECT_THROW(load_local_state(trainer.state(), nullptr, saved[0]), Error);
    EXPECT_THROW(load_full_state(trainer.state(), nullptr, saved[0]), Error);
  });
}

}  // namespace
}  // namespace tetra::testing
