// What a rank holds: state to the byte by the published formulas, and the peak of a run near what was predicted.

#include <string>
#include <tuple>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "mesh/mesh.h"
#include "models/weights.h"
#include "parallel/data/gradients.h"
#include "tests/support/memory.h"
#include "tests/support/reference.h"
#include "tests/support/synthetic.h"
#include "train/memory_estimate.h"

namespace tetra::testing {
namespace {

class StateBytes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, const char*>> {};

// Per parameter of a bf16 model: 18 bytes whole; 6 + 12/d, 2 + 16/d and 18/d in stages 1 to 3, on each of d ranks.
// 16 in fp32: 8 + 8/d, 4 + 12/d, 16/d.
TEST_P(StateBytes, EqualTheFormulas) {
  const auto& [stage, d, precision] = GetParam();
  const TemporaryFolder folder;
  const Layout layout{.shard = d, .zero_stage = stage};
  const Config config = apply(small_config({.batch = 8, .precision = precision}, folder), layout);
  WorldOptions options;
  options.degrees = config.parallelism.degrees;
  run_local_ranks(static_cast<int>(d), options, [&](World& world) {
    const MemoryMeter meter;
    const auto model = make_causal_lm(resolve_model_config(config.model), parse_precision(config.train.precision),
                                      {world.group(Axis::tp)});
    const ShardingOptions sharding{.zero_stage = stage};
    ModelState state(model->parameters(), shard_groups(world, stage), sharding);
    draw_weights(state, 1);
    const auto optimizer = make_optimizer(state, {});
    int64_t n = 0;  // parameters with the shards' padding
    for (const UnitState& unit : state.units()) {
      n += unit.unit.shard_numel * (stage == 0 ? 1 : d);
    }
    const bool half = std::string(precision) == "bf16";
    const int64_t value = half ? 2 : 4, master = half ? 4 : 0, moments = 8;
    const int64_t kept = stage == 0  ? (value + master + moments) * n
                         : stage < 3 ? value * n + (master + moments) * n / d
                                     : (value + master + moments) * n / d;
    EXPECT_EQ(meter.live(), kept) << world.rank();
    EXPECT_EQ(state.bytes() + optimizer->bytes(), kept);

    UnitGatherer gatherer(state);
    model->set_hooks(&gatherer);
    GradientReducer reducer(state);
    reducer.on_unit_done([&](size_t unit) { gatherer.unit_done(unit); });
    const auto batch = make_token_batch(at::zeros({1, 8}, at::kLong), at::zeros({1, 8}, at::kLong));
    const auto micro_batch = [&](bool first, bool last) {
      reducer.begin_micro_batch(first, last);
      causal_loss(*model, batch, 1.0).backward();
      reducer.end_micro_batch();
    };
    micro_batch(true, true);  // makes what stays for good: rotary tables
    reducer.release();
    const int64_t before = meter.live();
    micro_batch(true, false);
    EXPECT_EQ(meter.live() - before, stage < 2 ? 4 * n : 4 * n / d) << "main gradients, rank " << world.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, StateBytes,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(2, 3, 8),
                                            ::testing::Values("bf16", "fp32")));

// 100 M parameters in stage 3 on 8 ranks.
TEST(PeakMemory, IsWithinATenthOfThePrediction) {
  const TemporaryFolder folder;
  for (const char* recompute : {"none", "full"}) {
    Config config = apply(small_config({.extra = R"("tie_word_embeddings": true)",
                                        .vocab_size = 8192,
                                        .hidden_size = 768,
                                        .intermediate_size = 2048,
                                        .layers = 13,
                                        .heads = 12,
                                        .kv_heads = 12,
                                        .batch = 8,
                                        .seq_len = 128,
                                        .steps = 2,
                                        .precision = "bf16"},
                                       folder),
                          {.shard = 8});
    config.train.recompute = recompute;
    WorldOptions options;
    options.degrees = config.parallelism.degrees;
    run_local_ranks(8, options, [&](World& world) {
      const MemoryMeter meter;
      Trainer trainer(config, world);
      // No rank ever holds the model: its state, and one tensor's part while that is drawn.
      EXPECT_LT(meter.peak(), trainer.state().bytes() + trainer.optimizer().bytes() + 8192 * 768 * 4 / 8 + (1 << 20));
      trainer.step();
      trainer.step();
      const MemoryEstimate predicted = estimate_memory(config, trainer.model());
      EXPECT_GT(trainer.model().parameters().global_numel(), 95'000'000);
      EXPECT_NEAR(static_cast<double>(meter.peak()), static_cast<double>(predicted.peak()),
                  0.1 * static_cast<double>(predicted.peak()))
          << "values " << predicted.values << " masters " << predicted.masters << " optimizer " << predicted.optimizer
          << " gradients " << predicted.gradients << " activations " << predicted.activations << " working "
          << predicted.working;
    });
  }
}

}  // namespace
}  // namespace tetra::testing
