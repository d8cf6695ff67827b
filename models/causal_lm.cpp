#include "models/causal_lm.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include "kernels/error.h"
#include "models/gpt2.h"
#include "models/llama.h"
#include "parallel/tensor/vocabulary.h"

namespace tetra {
namespace {

// `run` gives the piece's output, a Stream or Varying.
template <typename Run>
auto run_piece(const CausalLM& model, int64_t piece, const Run& run) {
  PieceHooks* hooks = model.hooks();
  if (hooks == nullptr) {
    return run();
  }
  hooks->before_forward(piece);
  auto output = run();
  output.tensor = hooks->after_forward(piece, output.tensor);
  return output;
}

Stream run_block(CausalLM& model, int64_t layer, const Stream& x, const TokenBatch& batch) {
  const RecomputePolicy& policy = model.recompute_policy();
  if (policy.of_layer(layer) != Recompute::full) {
    return model.block(layer, x, batch);
  }
  const auto segment = [&model, layer, tokens = x.tokens, batch](const at::Tensor& input) {
    return model.block(layer, Stream{input, tokens}, batch).tensor;
  };
  return {recompute(segment, x.tensor, {policy.in_host_memory}), x.tokens};
}

Varying forward(CausalLM& model, const TokenBatch& batch) {
  const int64_t layers = model.config().num_layers;
  Stream x = run_piece(model, 0, [&] { return model.embed(batch); });
  for (int64_t layer = 0; layer < layers; ++layer) {
    x = run_piece(model, layer + 1, [&] { return run_block(model, layer, x, batch); });
  }
  return run_piece(model, layers + 1, [&] { return model.head(x); });
}

}  // namespace

TokenBatch make_token_batch(at::Tensor ids, at::Tensor labels) {
  auto positions = at::arange(ids.size(1), ids.options());
  return {std::move(ids), std::move(labels), std::move(positions)};
}

CausalLM::CausalLM(ModelConfig config, Precision precision, const TensorParallel& tp, at::Device device)
    : config_(std::move(config)), tp_(tp), parameters_(precision, tp.rank(), device) {}

std::unique_ptr<CausalLM> make_causal_lm(const ModelConfig& config, Precision precision, const TensorParallel& tp,
                                         at::Device device) {
  if (config.model_type == "gpt2") {
    return std::make_unique<Gpt2>(config, precision, tp, device);
  }
  return std::make_unique<Llama>(config, precision, tp, device);
}

at::Tensor causal_loss(CausalLM& model, const TokenBatch& batch, double scale) {
  const auto logits = forward(model, batch);
  const auto& tp = model.tensor_parallel();
  const int64_t vocab_begin = even_range(model.config().vocab_size, tp.size(), tp.rank()).begin;
  return vocab_parallel_cross_entropy(logits, batch.labels.reshape({-1}), vocab_begin, scale, tp, "loss");
}

at::Tensor full_logits(CausalLM& model, const TokenBatch& batch) {
  const at::NoGradGuard no_grad;
  const auto logits = forward(model, batch);
  const auto all = gather_last_dim(logits, model.config().vocab_size, model.tensor_parallel(), "full_logits");
  return all.view({batch.ids.size(0), batch.ids.size(1), -1});
}

}  // namespace tetra
