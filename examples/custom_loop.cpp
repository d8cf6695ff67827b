// A training loop of one's own on a mesh of data x tensor parallelism: a small Llama learns to count. Run it with any
// layout, the losses are the same:   custom_loop [dp] [tp]      (thread ranks; the default is 2 x 2)

#include <cstdio>
#include <cstdlib>
#include <exception>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "tetra.h"

namespace {

constexpr int64_t kSteps = 30;
constexpr int64_t kBatch = 8;    // sequences a step, over all ranks
constexpr int64_t kLength = 32;  // tokens a sequence
constexpr int64_t kVocab = 64;

const char* const kModel = R"({
  "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5})";

/// Sequence `row` of a step counts up from a start of its own: row, row + 1, ... modulo the vocabulary.
at::Tensor counting_rows(int64_t step, tetra::Range rows) {
  const auto starts = at::arange(rows.begin, rows.end).unsqueeze(1) * 7 + step * 13;
  return (starts + at::arange(kLength).unsqueeze(0)).remainder(kVocab);
}

void train(tetra::World& world) {
  const tetra::TensorParallel tp{world.group(tetra::Axis::tp), /*sequence_parallel=*/true};
  const auto config = tetra::parse_model_config(kModel, "the example");
  const auto model = tetra::make_causal_lm(config, tetra::parse_precision("fp32"), tp);

  // Masters, gradients and optimizer state are cut over dp_shard as the ZeRO stage says.
  const tetra::ShardingOptions sharding{.zero_stage = 2};
  tetra::ModelState state(model->parameters(), tetra::shard_groups(world, sharding.zero_stage), sharding);
  tetra::draw_weights(state, /*seed=*/1);

  // Ranks of one data-parallel group read different rows; each row's labels are the row itself, one token on.
  const tetra::Group& dp = world.group(tetra::Flat::dp);
  const tetra::Range rows = tetra::even_range(kBatch, dp.size(), dp.rank());
  const double scale = 1.0 / (kBatch * (kLength - 1));  // one over the tokens that count, on all ranks together

  tetra::GradientReducer gradients(state);
  const auto optimizer = tetra::make_optimizer(state, {});
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto ids = counting_rows(step, rows);
    gradients.begin_micro_batch(/*first=*/true, /*last=*/true);
    auto loss = tetra::causal_loss(*model, tetra::make_token_batch(ids, tetra::shift_labels(ids)), scale);
    loss.backward();
    gradients.end_micro_batch();

    const double norm = tetra::global_grad_norm(state);
    optimizer->step(/*lr=*/3e-3, tetra::clip_factor(norm, 1.0));
    gradients.release();

    auto total = loss.detach();
    tetra::all_reduce(total, dp, "example.loss");
    if (step == 1 || step % 10 == 0) {
      char line[80];
      std::snprintf(line, sizeof line, "step %2ld  loss %.12f  grad_norm %.6f", step, total.item<double>(), norm);
      world.print(line);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  tetra::WorldOptions options;
  options.degrees.dp_shard = argc > 1 ? std::atoi(argv[1]) : 2;
  options.degrees.tp = argc > 2 ? std::atoi(argv[2]) : 2;
  try {
    tetra::check_model_layout(tetra::parse_model_config(kModel, "the example"), options.degrees);
    tetra::run_local_ranks(static_cast<int>(options.degrees.world_size()), options, train);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_loop: %s\n", error.what());
    return 1;
  }
}
