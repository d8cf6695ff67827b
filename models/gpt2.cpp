#include "models/gpt2.h"

#include <cmath>

#include <ATen/ops/constant_pad_nd.h>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "parallel/tensor/vocabulary.h"

// B sequences, S tokens each, T = B*S, H hidden, A local heads, D head size.

namespace tetra {

Gpt2::Gpt2(const ModelConfig& config, Precision precision, const TensorParallel& tp, at::Device device)
    : CausalLM(config, precision, tp, device), weights_(add_gpt2_parameters(parameters_, config_, tp_)) {}

Stream Gpt2::embed(const TokenBatch& batch) {
  const Stream tokens = vocab_parallel_embedding(batch.ids.reshape({-1}), *weights_.embedding, tp_, "embedding");
  // Positions of the tokens that this rank's stream holds; padded rows take position 0, and their gradient is zero.
  const TokenRange mine = stream_tokens(tokens.tokens, tp_);
  auto positions = batch.positions.expand_as(batch.ids).reshape({-1}).slice(0, mine.begin, mine.end);
  positions = at::constant_pad_nd(positions, {0, mine.padded - (mine.end - mine.begin)});
  return tokens + Stream{embedding(weights_.positions->value, positions), tokens.tokens};
}

Stream Gpt2::block(int64_t layer, const Stream& x, const TokenBatch& batch) {
  const Stream h = x + self_attention(layer, x, batch);
  return h + feed_forward(layer, h);
}

Varying Gpt2::head(const Stream& x) {
  return column_parallel(enter({norm(x, weights_.ln_f), x.tokens}, tp_, "head"), {weights_.head, nullptr});
}

at::Tensor Gpt2::norm(const Stream& x, const LayerNormParameters& w) const {
  return layer_norm(x.tensor, w.weight->value, w.bias->value, config_.norm_eps);
}

Varying Gpt2::norm_linear(const Stream& x, const LayerNormParameters& norm_weights, const LinearParameters& layer,
                          const char* site, bool discard) const {
  return discard_between(
      discard && !tp_.cuts_tokens(), [this, x, &norm_weights] { return norm(x, norm_weights); },
      [&](const at::Tensor& normed) {
        return column_parallel(enter({normed, x.tokens}, tp_, site), layer, WeightLayout::in_out);
      });
}

Stream Gpt2::self_attention(int64_t layer, const Stream& x, const TokenBatch& batch) {
  const Gpt2Layer& w = weights_.layers[layer];
  const bool selective = is_selective(layer);
  const auto qkv = norm_linear(x, w.ln_1, w.qkv, "attention", selective).tensor;
  const int64_t width = qkv.size(1) / 3;
  const auto heads = [&](int64_t i) {
    return qkv.narrow(1, i * width, width)
        .view({batch.ids.size(0), batch.ids.size(1), width / config_.head_dim, config_.head_dim});
  };
  double scale = config_.scale_attention ? 1.0 / std::sqrt(static_cast<double>(config_.head_dim)) : 1.0;
  if (config_.scale_attention_by_layer) {
    scale /= static_cast<double>(layer + 1);
  }
  return discard_between(
      selective,
      [q = heads(0), k = heads(1), v = heads(2), scale] { return attention(q, k, v, /*causal=*/true, scale); },
      [&](const at::Tensor& o) {
        return row_parallel(Varying(o.view({o.size(0) * o.size(1), width})), w.out, tp_, "attention",
                            WeightLayout::in_out);
      },
      /*kept_elsewhere=*/true);
}

Stream Gpt2::feed_forward(int64_t layer, const Stream& x) {
  const Gpt2Layer& w = weights_.layers[layer];
  const bool selective = is_selective(layer);
  const auto up = norm_linear(x, w.ln_2, w.fc, "mlp", selective).tensor;
  return discard_between(
      selective, [this, up] { return gelu(up, config_.gelu); },
      [&](const at::Tensor& y) { return row_parallel(Varying(y), w.proj, tp_, "mlp", WeightLayout::in_out); });
}

}  // namespace tetra
