// What is sent equals the published formulas, to the byte.

#include <functional>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/support/reference.h"
#include "tests/support/synthetic.h"

namespace tetra::testing {
namespace {

constexpr int64_t kLayers = 2, kHidden = 32, kVocab = 96, kBatch = 24, kLength = 12;

// One step's ledger of rank 0.
Ledger one_step(const Layout& layout, const std::string& precision, int64_t* local_parameters = nullptr,
                const std::function<void(ParallelismConfig&)>& change = {}) {
  const TemporaryFolder folder;
  Config config = apply(small_config({.vocab_size = kVocab,
                                      .hidden_size = kHidden,
                                      .layers = kLayers,
                                      .batch = kBatch,
                                      .seq_len = kLength,
                                      .precision = precision},
                                     folder),
                        layout);
  if (change) {
    change(config.parallelism);
  }
  Ledger result;
  WorldOptions options;
  options.degrees = config.parallelism.degrees;
  run_local_ranks(static_cast<int>(layout.world_size()), options, [&](World& world) {
    Trainer trainer(config, world);
    world.ledger().clear();
    trainer.step();
    if (world.is_main_process()) {
      result = world.ledger();
      for (const Parameter& parameter : trainer.model().parameters().all()) {
        if (local_parameters != nullptr) {
          *local_parameters += parameter.value.numel();
        }
      }
    }
  });
  return result;
}

int64_t site_bytes(const Ledger& ledger, const std::string& site) {
  int64_t bytes = 0;
  for (const auto& [key, tally] : ledger.tallies()) {
    bytes += key.site == site ? tally.bytes : 0;
  }
  return bytes;
}

class TensorParallelBytes : public ::testing::TestWithParam<std::tuple<int64_t, bool, const char*>> {};

// Per layer and micro-batch, forward and backward: 8(t-1)/t * s*b*h*B, with and without sequence parallelism.
TEST_P(TensorParallelBytes, PerLayerEqualTheFormula) {
  const auto& [t, sequence_parallel, precision] = GetParam();
  const int64_t item = std::string(precision) == "bf16" ? 2 : std::string(precision) == "fp32" ? 4 : 8;
  for (const int64_t micro_batches : {1, 2}) {
    const Layout layout{.tp = t, .sequence_parallel = sequence_parallel, .micro_batches = micro_batches};
    const Ledger ledger = one_step(layout, precision);
    int64_t layers = 0;
    for (const char* site : {"attention.forward", "attention.backward", "mlp.forward", "mlp.backward"}) {
      layers += site_bytes(ledger, site);
    }
    EXPECT_EQ(layers, kLayers * 8 * (t - 1) * kBatch * kLength * kHidden * item / t) << layout.name();
    const int64_t edge = 2 * (t - 1) * kBatch * kLength * kHidden * item / t;  // one reduction and its twin
    EXPECT_EQ(site_bytes(ledger, "embedding.forward") + site_bytes(ledger, "embedding.backward"), edge);
    EXPECT_EQ(site_bytes(ledger, "head.forward") + site_bytes(ledger, "head.backward"), edge);
    const int64_t statistic = item == 8 ? 8 : 4;  // of a token: its largest logit; then its sum and its target
    EXPECT_EQ(site_bytes(ledger, "loss.max"), 2 * (t - 1) * kBatch * kLength * statistic / t);
    EXPECT_EQ(site_bytes(ledger, "loss.sum"), 2 * (t - 1) * kBatch * kLength * 2 * statistic / t);
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, TensorParallelBytes,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Bool(),
                                            ::testing::Values("fp64", "fp32", "bf16")));

// Gradients: once a window, 2(d-1)/d * parameters * bytes of a main gradient, whatever the number of micro-batches.
TEST(DataParallelBytes, EqualTheFormulaOnceAWindow) {
  for (const int64_t micro_batches : {1, 2}) {
    int64_t parameters = 0;
    const Ledger ledger = one_step({.dp = 2, .tp = 2, .micro_batches = micro_batches}, "bf16", &parameters);
    EXPECT_EQ(site_bytes(ledger, "data_parallel.gradients"), 2 * parameters * 4 / 2);
  }
}

// Layers and embedding of a model whose units are pieces, on d shards; numbers of parameters with padding.
struct Padded {
  int64_t embedding = 0, layers = 0, head = 0;
  int64_t total() const { return embedding + layers + head; }
};
Padded padded_parameters(int64_t d, int64_t tp) {
  const TemporaryFolder folder;
  const Config config = small_config({.vocab_size = kVocab, .hidden_size = kHidden, .layers = kLayers}, folder);
  Padded result;
  WorldOptions options;
  options.degrees.tp = tp;
  run_local_ranks(static_cast<int>(tp), options, [&](World& world) {
    const auto model = make_causal_lm(resolve_model_config(config.model), {}, {world.group(Axis::tp)});
    if (world.is_main_process()) {
      const auto units = plan_units(model->parameters(), "layer", d);
      result.embedding = units.front().padded(d);
      result.head = units.back().padded(d);
      for (size_t u = 1; u + 1 < units.size(); ++u) {
        result.layers += units[u].padded(d);
      }
    }
  });
  return result;
}

class ShardedBytes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

// Stage 3, a micro-batch: (d-1)/d * parameters * (2 gathers + 1 reduce-scatter), but that embedding and head, at the
// turning points, are gathered once. Stage 2 gathers what it updates once a step, stage 1 reduces once a window too.
TEST_P(ShardedBytes, EqualTheFormulas) {
  const auto& [stage, d, tp] = GetParam();
  const Padded p = padded_parameters(d, tp);
  for (const int64_t micro_batches : {1, 2}) {
    const Layout layout{.dp = 2, .shard = d, .tp = tp, .micro_batches = micro_batches, .zero_stage = stage};
    const Ledger ledger = one_step(layout, "bf16");
    const int64_t m = micro_batches;
    const int64_t gathered = p.embedding + 2 * p.layers + p.head;
    EXPECT_EQ(site_bytes(ledger, "sharding.gather"), stage < 3 ? 0 : m * gathered * 2 * (d - 1) / d);
    EXPECT_EQ(site_bytes(ledger, "sharding.publish"), stage == 3 ? 0 : p.total() * 2 * (d - 1) / d);
    EXPECT_EQ(site_bytes(ledger, "sharding.gradients"), (stage == 1 ? 1 : m) * p.total() * 4 * (d - 1) / d);
    EXPECT_EQ(site_bytes(ledger, "data_parallel.gradients"), 2 * p.total() / d * 4 / 2);  // each shard over 2 replicas
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ShardedBytes,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(2, 3),
                                            ::testing::Values(1, 2)));

TEST(ShardedBytesOf, AreFewerWhereUnitsAreKeptOrGradientsWait) {
  const TemporaryFolder folder;
  const Padded p = padded_parameters(2, 1);
  const auto bytes = [&](const std::function<void(ParallelismConfig&)>& change, const char* site) {
    const Layout layout{.shard = 2, .micro_batches = 2};
    return site_bytes(one_step(layout, "bf16", nullptr, change), site);
  };
  EXPECT_EQ(bytes([](auto& c) { c.reshard_after_forward = false; }, "sharding.gather"), 2 * p.total() * 2 / 2);
  EXPECT_EQ(bytes([](auto& c) { c.reduce_gradients = "window"; }, "sharding.gradients"), p.total() * 4 / 2);
  EXPECT_EQ(bytes([](auto& c) { c.reduce_type = "bf16"; }, "sharding.gradients"), 2 * p.total() * 2 / 2);
}

TEST(OneRank, SendsNothing) {
  EXPECT_EQ(one_step({}, "fp32").total().calls, 0);
}

}  // namespace
}  // namespace tetra::testing
