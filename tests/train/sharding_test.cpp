// How state is sharded - units, prefetch, when and in what type gradients are reduced - changes bytes and memory, never
// the numbers.

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/reference.h"
#include "tests/support/synthetic.h"
#include "train/options.h"

namespace tetra::testing {
namespace {

using Change = std::function<void(Config&)>;

struct Setting {
  std::string name;
  Change change;
};

const std::vector<Setting> kSettings = {
    {"unit_model", [](Config& c) { c.parallelism.unit_size = "model"; }},
    {"unit_100", [](Config& c) { c.parallelism.unit_size = "100"; }},
    {"unit_9000", [](Config& c) { c.parallelism.unit_size = "9000"; }},
    {"no_prefetch", [](Config& c) { c.parallelism.prefetch_units = 0; }},
    {"prefetch_3", [](Config& c) { c.parallelism.prefetch_units = 3; }},
    {"kept_after_forward", [](Config& c) { c.parallelism.reshard_after_forward = false; }},
    {"reduced_once_a_window", [](Config& c) { c.parallelism.reduce_gradients = "window"; }},
    {"debug", [](Config& c) { c.parallelism.debug_collectives = true; }},
};

class Settings : public ::testing::TestWithParam<std::tuple<Setting, int64_t>> {};

TEST_P(Settings, DoNotChangeTheTrajectory) {
  const auto& [setting, stage] = GetParam();
  const TemporaryFolder folder;
  const Config config = small_config({.extra = R"("tie_word_embeddings": true)", .layers = 3, .batch = 8}, folder);
  const Trajectory one = train_local(config);
  for (const Layout& layout : {Layout{.shard = 4, .micro_batches = 2, .zero_stage = stage},
                               Layout{.dp = 2, .shard = 2, .tp = 2, .micro_batches = 2, .zero_stage = stage}}) {
    Config changed = apply(config, layout);
    setting.change(changed);
    const Errors errors = compare(train_local(changed), one);
    EXPECT_TRUE(errors.within(1e-10, 1e-10)) << layout.name() << ": " << errors;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Settings,
                         ::testing::Combine(::testing::ValuesIn(kSettings), ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_zero" + std::to_string(std::get<1>(info.param));
                         });

TEST(Settings, OneRankMayUseUnitsOfAnySize) {
  const TemporaryFolder folder;
  Config config = apply(small_config({}, folder), {.dp = 4, .micro_batches = 1});
  const Trajectory whole = train_local(config);
  for (const char* size : {"model", "1", "5000"}) {
    config.parallelism.unit_size = size;
    EXPECT_EQ(train_local(config).losses, whole.losses) << size;
  }
}

TEST(LowPrecision, AgreesOverStagesAndReductionTypes) {
  const TemporaryFolder folder;
  SmallRun run{.batch = 8, .steps = 6, .precision = "fp32"};
  const Trajectory exact = train_local(small_config(run, folder));
  run.precision = "bf16";
  const Config config = small_config(run, folder);
  for (const int64_t stage : {1, 2, 3}) {
    for (const bool fp32_parameters : {false, true}) {
      for (const char* type : {"auto", "bf16"}) {
        Config changed = apply(config, {.dp = 2, .shard = 2, .micro_batches = 2, .zero_stage = stage});
        changed.train.fp32_parameters = fp32_parameters;
        changed.parallelism.reduce_type = type;
        const Errors errors = compare(train_local(changed), exact);
        EXPECT_LT(errors.loss, 4e-3) << stage << fp32_parameters << type << ": " << errors;
        EXPECT_LT(errors.norm, 4e-2) << stage << fp32_parameters << type << ": " << errors;
        EXPECT_LT(errors.weights, 4e-2) << stage << fp32_parameters << type << ": " << errors;
      }
    }
  }
}

// Values cast for each use are the values that would have been kept.
TEST(LowPrecision, Fp32ParametersGiveTheSameNumbers) {
  const TemporaryFolder folder;
  Config config = apply(small_config({.precision = "bf16"}, folder), {.shard = 2});
  const Trajectory kept = train_local(config);
  config.train.fp32_parameters = true;
  const Trajectory cast = train_local(config);
  EXPECT_EQ(kept.losses, cast.losses);
  EXPECT_EQ(kept.grad_norms, cast.grad_norms);
}

// Every optimizer and way of clipping updates a shard as it would the whole.
TEST(Optimizers, AgreeOverLayouts) {
  const TemporaryFolder folder;
  const std::vector<Setting> optimizers = {
      {"sgd", [](Config& c) { c.train.optimizer = {.type = "sgd", .lr = 0.05}; }},
      {"momentum", [](Config& c) { c.train.optimizer = {.type = "sgd", .lr = 0.05, .momentum = 0.9}; }},
      {"nesterov",
       [](Config& c) { c.train.optimizer = {.type = "sgd", .lr = 0.05, .momentum = 0.9, .nesterov = true}; }},
      {"lion",
       [](Config& c) {
         c.train.optimizer = {.type = "lion", .lr = 1e-3, .betas = {0.9, 0.99}};
       }},
      {"clip_value",
       [](Config& c) {
         c.train.clip_grad_norm.reset();
         c.train.clip_grad_value = 1e-3;
       }},
      {"no_clipping", [](Config& c) { c.train.clip_grad_norm.reset(); }},
  };
  for (const Setting& setting : optimizers) {
    Config config = small_config({.batch = 8, .steps = 5}, folder);
    setting.change(config);
    const Trajectory one = train_local(config);
    for (const Layout& layout : {Layout{.shard = 4}, Layout{.dp = 2, .shard = 2, .tp = 2, .zero_stage = 1},
                                 Layout{.shard = 3, .tp = 2, .sequence_parallel = true, .zero_stage = 2}}) {
      const Errors errors = compare(train_local(apply(config, layout)), one);
      EXPECT_TRUE(errors.within(1e-10, 1e-10)) << setting.name << " on " << layout.name() << ": " << errors;
    }
  }
}

TEST(Optimizers, ClipOneWayAtATime) {
  const TemporaryFolder folder;
  Config config = small_config({}, folder);
  config.train.clip_grad_value = 0.1;
  EXPECT_THROW(train_local(config), Error);
}

TEST(Strategies, AreNamesForStages) {
  Config config;
  config.parallelism.degrees.dp_shard = 2;
  const auto options = [&](const char* name) {
    config.parallelism.sharding_strategy = name;
    return sharding_options(config);
  };
  EXPECT_EQ(options("NO_SHARD").zero_stage, 0);
  EXPECT_EQ(options("FULL_SHARD").zero_stage, 3);
  EXPECT_TRUE(options("FULL_SHARD").reshard_after_forward);
  EXPECT_EQ(options("SHARD_GRAD_OP").zero_stage, 3);
  EXPECT_FALSE(options("SHARD_GRAD_OP").reshard_after_forward);
  EXPECT_THROW(options("HYBRID_SHARD"), Error);
  config.parallelism.degrees.dp_replicate = 2;
  EXPECT_TRUE(options("HYBRID_SHARD").reshard_after_forward);
  EXPECT_FALSE(options("HYBRID_SHARD_ZERO2").reshard_after_forward);
}

TEST(Units, RefuseASizeThatIsNone) {
  const TemporaryFolder folder;
  Config config = small_config({}, folder);
  for (const char* size : {"", "0", "-1", "layers", "3 MB"}) {
    config.parallelism.unit_size = size;
    EXPECT_THROW(train_local(config), Error) << size;
  }
}

}  // namespace
}  // namespace tetra::testing
