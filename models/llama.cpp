#include "models/llama.h"

#include <algorithm>
#include <tuple>

#include <ATen/ops/tensor.h>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/norm.h"
#include "parallel/tensor/vocabulary.h"

// B sequences, S tokens each, T = B*S, H hidden, A local query heads, G local kv heads, D head size, F local
// feed-forward.

namespace tetra {

Llama::Llama(const ModelConfig& config, Precision precision, const TensorParallel& tp, at::Device device)
    : CausalLM(config, precision, tp, device),
      weights_(add_llama_parameters(parameters_, config_, tp_)),
      heads_(local_heads(config.num_heads, config.num_kv_heads, tp.size(), tp.rank())) {}

Stream Llama::embed(const TokenBatch& batch) {
  return vocab_parallel_embedding(batch.ids.reshape({-1}), *weights_.embedding, tp_, "embedding");
}

Stream Llama::block(int64_t layer, const Stream& x, const TokenBatch& batch) {
  const Stream h = x + self_attention(layer, x, batch);
  return h + feed_forward(layer, h);
}

Varying Llama::head(const Stream& x) {
  return column_parallel(enter({norm(x, *weights_.final_norm), x.tokens}, tp_, "head"), {weights_.head, nullptr});
}

at::Tensor Llama::norm(const Stream& x, const Parameter& weight) const {
  return rms_norm(x.tensor, weight.value, config_.norm_eps);
}

std::vector<Varying> Llama::norm_linear(const Stream& x, const Parameter& norm_weight,
                                        const std::vector<LinearParameters>& layers, const char* site,
                                        bool discard) const {
  return discard_between(
      discard && !tp_.cuts_tokens(), [this, x, &norm_weight] { return norm(x, norm_weight); },
      [&](const at::Tensor& normed) {
        return column_parallel(enter({normed, x.tokens}, tp_, site), layers);
      });
}

Stream Llama::self_attention(int64_t layer, const Stream& x, const TokenBatch& batch) {
  const LlamaLayer& w = weights_.layers[layer];
  const bool selective = is_selective(layer);
  const int64_t sequences = batch.ids.size(0);
  const int64_t length = batch.ids.size(1);
  const int64_t size = config_.head_dim;
  const auto qkv = norm_linear(x, *w.input_norm, {w.q, w.k, w.v}, "attention", selective);
  auto q = qkv[0].tensor.view({sequences, length, heads_.queries, size});
  auto k = qkv[1].tensor.view({sequences, length, heads_.kv, size});
  auto v = qkv[2].tensor.view({sequences, length, heads_.kv, size});
  if (config_.qk_norm) {
    q = rms_norm(q, w.q_norm->value, config_.norm_eps);
    k = rms_norm(k, w.k_norm->value, config_.norm_eps);
  }
  std::tie(q, k) = rope_(q, k, rope_table(length), batch.positions);
  if (!heads_.kv_of_query.empty()) {
    const auto which = at::tensor(heads_.kv_of_query, batch.ids.options());
    k = k.index_select(2, which);
    v = v.index_select(2, which);
  }
  return discard_between(
      selective, [q, k, v] { return attention(q, k, v, /*causal=*/true); },
      [&](const at::Tensor& o) {
        return row_parallel(Varying(o.view({sequences * length, heads_.queries * size})), w.out, tp_, "attention");
      },
      /*kept_elsewhere=*/true);
}

Stream Llama::feed_forward(int64_t layer, const Stream& x) {
  const LlamaLayer& w = weights_.layers[layer];
  const bool selective = is_selective(layer);
  const auto gate_up = norm_linear(x, *w.post_attention_norm, {w.gate, w.up}, "mlp", selective);
  return discard_between(
      selective, [gate = gate_up[0].tensor, up = gate_up[1].tensor] { return swiglu(gate, up); },
      [&](const at::Tensor& y) { return row_parallel(Varying(y), w.down, tp_, "mlp"); });
}

// Angles for all positions that a run may use are made once; fp64 runs compute them in fp64.
const RopeTable& Llama::rope_table(int64_t positions) {
  if (!rope_table_.cos.defined() || rope_table_.cos.size(0) < positions) {
    const bool wide = parameters_.precision().compute == at::kDouble;
    rope_table_ = make_rope_table(config_.rope, std::max<int64_t>(positions, 256), wide ? at::kDouble : at::kFloat);
    rope_table_.cos = rope_table_.cos.to(parameters_.device());
    rope_table_.sin = rope_table_.sin.to(parameters_.device());
  }
  return rope_table_;
}

}  // namespace tetra
