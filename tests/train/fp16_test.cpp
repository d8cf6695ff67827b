// fp16 with a dynamic loss scale: close to fp32, and an overflow anywhere skips the step everywhere.

#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/reference.h"
#include "tests/support/synthetic.h"

namespace tetra::testing {
namespace {

const std::vector<Layout> kLayouts = {{},
                                      {.dp = 2},
                                      {.tp = 2, .sequence_parallel = true},
                                      {.shard = 2, .micro_batches = 2},
                                      {.dp = 2, .shard = 2, .tp = 2, .zero_stage = 2},
                                      {.shard = 4, .zero_stage = 1}};

TEST(Fp16, StaysNearFp32OnEveryLayout) {
  const TemporaryFolder folder;
  SmallRun run{.batch = 8, .steps = 6, .precision = "fp32"};
  const Trajectory exact = train_local(small_config(run, folder));
  run.precision = "fp16";
  const Config config = small_config(run, folder);
  for (const Layout& layout : kLayouts) {
    const Errors errors = compare(train_local(apply(config, layout)), exact);
    EXPECT_LT(errors.loss, 1e-3) << layout.name() << ": " << errors;
    EXPECT_LT(errors.norm, 1e-2) << layout.name() << ": " << errors;
    EXPECT_LT(errors.weights, 1e-2) << layout.name() << ": " << errors;
  }
}

// One element of one rank's gradient overflows in the second step; every rank skips it, and nothing but the scale
// changes.
TEST(Fp16, AnOverflowOnOneRankSkipsTheStepOnAll) {
  const TemporaryFolder folder;
  for (const Layout& layout : kLayouts) {
    Config config = apply(small_config({.batch = 8, .steps = 4, .precision = "fp16"}, folder), layout);
    config.train.scheduler = {"linear", 2, 0.0};
    const int last = static_cast<int>(layout.world_size()) - 1;
    std::mutex mutex;
    std::vector<StepResult> steps(4);
    WorldOptions options;
    options.degrees = config.parallelism.degrees;
    run_local_ranks(last + 1, options, [&](World& world) {
      Trainer trainer(config, world);
      bool overflow = false;
      if (world.rank() == last) {
        trainer.model().parameters().all().back().value.register_hook([&overflow](at::Tensor grad) {
          if (overflow) {
            grad.view({-1}).narrow(0, 0, 1).fill_(std::numeric_limits<float>::infinity());
          }
          return grad;
        });
      }
      for (size_t i = 0; i < steps.size(); ++i) {
        overflow = i == 1;
        const at::Tensor before = trainer.state().units()[0].master_shard.clone();
        const StepResult step = trainer.step();
        EXPECT_EQ(step.skipped, i == 1) << layout.name() << " rank " << world.rank();
        EXPECT_EQ(at::equal(trainer.state().units()[0].master_shard, before), i == 1) << layout.name();
        EXPECT_EQ(trainer.optimizer().steps_done(), static_cast<int64_t>(i < 1 ? 1 : i)) << layout.name();
        const std::lock_guard lock(mutex);
        steps[i] = step;
      }
    });
    EXPECT_EQ(steps[1].loss_scale, 65536.0);
    EXPECT_EQ(steps[2].loss_scale, 32768.0);
    EXPECT_EQ(steps[1].lr, steps[2].lr) << "the schedule stands still in a skipped step";
    EXPECT_NE(steps[2].lr, steps[3].lr);
  }
}

TEST(Fp16, GivesUpWhenNoScaleHelps) {
  const TemporaryFolder folder;
  Config config = small_config({.steps = 40, .precision = "fp16"}, folder);
  config.train.loss_scale.initial = 1e30;
  config.train.loss_scale.min = 1e30;
  EXPECT_THROW(train_local(config), Error);
}

}  // namespace
}  // namespace tetra::testing
