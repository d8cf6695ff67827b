// What a layer saves for its backward, counted tensor by tensor as autograd packs it. A program of its own: the hooks
// sit in the process's autograd engine.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "mesh/fabric.h"
#include "mesh/world.h"
#include "models/weights.h"

namespace tetra::testing {
namespace {

// Bytes of each distinct storage that was packed, by element type; model parameters are not activations.
struct Saved {
  std::set<const void*> parameters;
  std::map<const void*, std::pair<at::ScalarType, int64_t>> storages;

  int64_t bytes(at::ScalarType type) const {
    int64_t sum = 0;
    for (const auto& [address, entry] : storages) {
      sum += entry.first == type ? entry.second : 0;
    }
    return sum;
  }
};
thread_local Saved* counting = nullptr;

class Counter : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    const void* address = tensor.storage().data();
    if (!counting->parameters.contains(address)) {
      counting->storages[address] = {tensor.scalar_type(), static_cast<int64_t>(tensor.storage().nbytes())};
    }
  }
  at::Tensor call_unpack_hook() override { return tensor_; }
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data() const override {
    return std::nullopt;
  }

 private:
  at::Tensor tensor_;
};

class CountingEngine : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return counting == nullptr ? nullptr : std::make_unique<Counter>();
  }
};

torch::autograd::Engine& counting_engine() {
  static CountingEngine engine;
  return engine;
}

struct Shape {
  int64_t batch, length, hidden, heads, kv_heads, feed_forward;
};

// What one block of a bf16 Llama saves on rank 0, given its input.
Saved saved_by_one_layer(const Shape& s, const Degrees& degrees, bool sequence_parallel) {
  torch::autograd::set_default_engine_stub(&counting_engine);
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 64;
  config.hidden_size = s.hidden;
  config.intermediate_size = s.feed_forward;
  config.num_layers = 1;
  config.num_heads = s.heads;
  config.num_kv_heads = s.kv_heads;
  config.head_dim = s.hidden / s.heads;
  config.max_positions = s.length;
  config.rope.head_dim = config.head_dim;
  Saved result;
  run_local_ranks(static_cast<int>(degrees.world_size()), {.degrees = degrees}, [&](World& world) {
    const auto model = make_causal_lm(config, parse_precision("bf16"), {world.group(Axis::tp), sequence_parallel});
    ModelState state(model->parameters(), shard_groups(world, 0), {});
    draw_weights(state, 1);
    Saved saved;
    for (const Parameter& parameter : model->parameters().all()) {
      saved.parameters.insert(parameter.value.storage().data());
    }
    const auto batch = make_token_batch(at::randint(64, {s.batch, s.length}, at::kLong));
    const Stream x = model->embed(batch);
    counting = &saved;
    const Stream y = model->block(0, x, batch);
    counting = nullptr;
    if (world.is_main_process()) {
      result = std::move(saved);
    }
    y.tensor.sum().backward();  // what was packed is enough
  });
  return result;
}

// s*b*h*(12 + 4g/a + 6f/h) bytes of bf16; beside it the log-sum-exp of each head and token in fp32, and the tables of
// rotary angles, which all layers share; nothing else.
TEST(SavedActivations, OfALlamaLayerEqualTheFormula) {
  for (const Shape& s : {Shape{2, 32, 64, 8, 4, 160}, Shape{1, 48, 96, 6, 6, 256}, Shape{3, 16, 64, 4, 1, 96}}) {
    const Saved saved = saved_by_one_layer(s, {}, false);
    const int64_t tokens = s.batch * s.length;
    EXPECT_EQ(saved.bytes(at::kBFloat16),
              tokens * (12 * s.hidden + 4 * s.hidden * s.kv_heads / s.heads + 6 * s.feed_forward));
    const int64_t rotary_tables = 256 * (s.hidden / s.heads) * 4;  // cos and sin of 256 positions
    EXPECT_EQ(saved.bytes(at::kFloat), tokens * s.heads * 4 + rotary_tables);
    EXPECT_EQ(saved.bytes(at::kDouble), 0);
  }
}

// tp cuts what lies inside the regions; sequence parallelism also the norms' inputs, though not what they hand on: the
// gathered input of the two column-parallel products, 4 of the 12.
TEST(SavedActivations, AreCutByTensorAndSequenceParallelism) {
  const Shape s{2, 32, 64, 8, 4, 160};
  const int64_t tokens = s.batch * s.length;
  const int64_t inside = tokens * (4 * s.hidden + 4 * s.hidden * s.kv_heads / s.heads + 6 * s.feed_forward);
  const int64_t stream = tokens * 4 * s.hidden;    // the two norms' inputs
  const int64_t gathered = tokens * 4 * s.hidden;  // their outputs, of all tokens
  EXPECT_EQ(saved_by_one_layer(s, {.tp = 2}, false).bytes(at::kBFloat16), inside / 2 + stream + gathered);
  EXPECT_EQ(saved_by_one_layer(s, {.tp = 2}, true).bytes(at::kBFloat16), inside / 2 + stream / 2 + gathered);
}

}  // namespace
}  // namespace tetra::testing
