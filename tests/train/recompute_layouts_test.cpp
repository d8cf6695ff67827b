// Activations that are made again give the numbers that kept ones give, on every layout.

#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/reference.h"
#include "tests/support/synthetic.h"

namespace tetra::testing {
namespace {

class Recomputed : public ::testing::TestWithParam<std::tuple<const char*, const char*, Layout>> {};

TEST_P(Recomputed, IsEqualToTheLastBit) {
  const auto& [model, mode, layout] = GetParam();
  const TemporaryFolder folder;
  Config config = apply(small_config({.model_type = model, .layers = 3, .batch = 8}, folder), layout);
  const Trajectory kept = train_local(config);
  config.train.recompute = mode;
  for (const int64_t layers : {0, 2}) {
    config.train.recompute_layers = layers;
    const Trajectory again = train_local(config);
    EXPECT_EQ(again.losses, kept.losses) << layout.name();
    EXPECT_EQ(again.grad_norms, kept.grad_norms) << layout.name();
    EXPECT_EQ(again.probe, kept.probe) << layout.name();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, Recomputed,
    ::testing::Combine(::testing::Values("llama", "qwen3", "gpt2"), ::testing::Values("selective", "full"),
                       ::testing::Values(Layout{}, Layout{.dp = 2, .tp = 2}, Layout{.shard = 2, .micro_batches = 2},
                                         Layout{.shard = 2, .tp = 2, .sequence_parallel = true, .zero_stage = 2},
                                         Layout{.shard = 2, .tp = 4, .micro_batches = 2})),
    [](const auto& info) {
      return fmt::format("{}_{}_{}", std::get<0>(info.param), std::get<1>(info.param), std::get<2>(info.param).name());
    });

}  // namespace
}  // namespace tetra::testing
