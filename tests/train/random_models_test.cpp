// Models drawn at random: initial weights and the whole trajectory are the same on every layout, also with odd shapes.

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "models/weights.h"
#include "tests/support/reference.h"
#include "tests/support/synthetic.h"

namespace tetra::testing {
namespace {

struct Case {
  const char* name;
  SmallRun run;
  std::vector<Layout> layouts;
};

const std::vector<Layout> kUsual = {{.dp = 2},
                                    {.tp = 2, .sequence_parallel = true},
                                    {.dp = 2, .tp = 4},
                                    {.dp = 3, .tp = 2},
                                    {.tp = 4, .sequence_parallel = true, .micro_batches = 3}};

const std::vector<Case> kCases = {
    {"llama", {}, kUsual},
    {"llama_biases", {.extra = R"("attention_bias": true, "mlp_bias": true, "head_dim": 6)"}, kUsual},
    {"llama_tied_odd_vocabulary", {.extra = R"("tie_word_embeddings": true)", .vocab_size = 97}, kUsual},
    {"llama_one_kv_head", {.kv_heads = 1}, kUsual},
    {"llama_linear_rope", {.extra = R"("rope_scaling": {"type": "linear", "factor": 2.0})"}, kUsual},
    {"llama_llama3_rope",
     {.extra = R"("rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
       "high_freq_factor": 4.0, "original_max_position_embeddings": 16})"},
     kUsual},
    {"mistral", {.model_type = "mistral", .extra = R"("sliding_window": null)"}, kUsual},
    {"qwen2", {.model_type = "qwen2"}, kUsual},
    {"qwen3", {.model_type = "qwen3", .extra = R"("head_dim": 16)"}, kUsual},
    {"gpt2", {.model_type = "gpt2", .kv_heads = 4}, kUsual},
    {"gpt2_scaled_by_layer",
     {.model_type = "gpt2", .extra = R"("scale_attn_by_inverse_layer_idx": true, "activation_function": "gelu")"},
     kUsual},
    // Nothing divides anything: 3 and 7 ranks, uneven feed-forward, batch and tokens.
    {"odd_heads_3",
     {.vocab_size = 101,
      .hidden_size = 30,
      .intermediate_size = 47,
      .heads = 3,
      .kv_heads = 3,
      .batch = 5,
      .seq_len = 7},
     {{.tp = 3},
      {.tp = 3, .sequence_parallel = true, .micro_batches = 2},
      {.dp = 3},
      {.dp = 2, .tp = 3},
      {.dp = 5, .sequence_parallel = true},
      {.dp = 4, .micro_batches = 2}}},
    {"sharded_where_nothing_divides",
     {.vocab_size = 53, .hidden_size = 24, .intermediate_size = 37, .layers = 3, .batch = 7, .seq_len = 5},
     {{.shard = 3},
      {.shard = 5, .zero_stage = 1},
      {.shard = 7, .zero_stage = 2},
      {.dp = 2, .shard = 3, .micro_batches = 2},
      {.shard = 3, .tp = 2, .sequence_parallel = true, .micro_batches = 2},
      {.shard = 3, .tp = 4, .sequence_parallel = true, .micro_batches = 2, .zero_stage = 2}}},
    {"straddling_kv_heads_7",
     {.model_type = "qwen2", .hidden_size = 56, .heads = 14, .kv_heads = 2, .batch = 3, .seq_len = 5},
     {{.tp = 2},
      {.tp = 7},
      {.tp = 7, .sequence_parallel = true},
      {.tp = 14, .sequence_parallel = true},
      {.shard = 2, .tp = 7, .sequence_parallel = true}}},
};

class RandomModels : public ::testing::TestWithParam<Case> {};

TEST_P(RandomModels, HaveOneTrajectory) {
  const Case& test = GetParam();
  const TemporaryFolder folder;
  const Config config = small_config(test.run, folder);
  const Trajectory one = train_local(config);
  for (const Layout& layout : test.layouts) {
    const Errors errors = compare(train_local(apply(config, layout)), one);
    EXPECT_TRUE(errors.within(1e-10, 1e-10)) << test.name << " on " << layout.name() << ": " << errors;
  }
}

// Bit for bit, every element: each rank's part is cut out of what one rank draws.
TEST_P(RandomModels, StartFromTheSameWeights) {
  const Case& test = GetParam();
  const TemporaryFolder folder;
  const Config config = small_config(test.run, folder);
  World alone({}, nullptr);
  Trainer whole(config, alone);
  for (const Layout& layout : test.layouts) {
    WorldOptions options;
    const Config cut = apply(config, layout);
    options.degrees = cut.parallelism.degrees;
    run_local_ranks(static_cast<int>(layout.world_size()), options, [&](World& world) {
      Trainer part(cut, world);
      for (size_t unit = 0; unit < part.state().units().size(); ++unit) {
        part.state().gather(unit);
      }
      for (const Parameter& mine : part.model().parameters().all()) {
        const Parameter& all = *whole.model().parameters().find(mine.name);
        int64_t offset = 0;
        for (const Range& range : mine.slice.ranges) {
          ASSERT_TRUE(at::equal(all.value.narrow(mine.slice.dim, range.begin, range.size()),
                                mine.value.narrow(mine.slice.dim, offset, range.size())))
              << mine.name << " on " << layout.name();
          offset += range.size();
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Table, RandomModels, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(Repeats, AreEqualToTheLastBit) {
  const TemporaryFolder folder;
  const Config config =
      apply(small_config({.precision = "fp32"}, folder), {.dp = 2, .tp = 2, .sequence_parallel = true});
  const Trajectory first = train_local(config);
  const Trajectory second = train_local(config);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.grad_norms, second.grad_norms);
  EXPECT_EQ(first.probe, second.probe);
}

TEST(Bf16, StaysNearFp32AndAgreesOverLayouts) {
  const TemporaryFolder folder;
  SmallRun run{.steps = 6, .precision = "fp32"};
  const Trajectory exact = train_local(small_config(run, folder));
  run.precision = "bf16";
  const Config config = small_config(run, folder);
  for (const Layout& layout :
       {Layout{}, Layout{.dp = 2}, Layout{.tp = 2}, Layout{.dp = 2, .tp = 2, .sequence_parallel = true}}) {
    const Errors errors = compare(train_local(apply(config, layout)), exact);
    EXPECT_LT(errors.loss, 4e-3) << layout.name() << ": " << errors;
    EXPECT_LT(errors.norm, 4e-2) << layout.name() << ": " << errors;
    EXPECT_LT(errors.weights, 4e-2) << layout.name() << ": " << errors;
  }
}

}  // namespace
}  // namespace tetra::testing
