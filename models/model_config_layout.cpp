#include <string>
#include <vector>

#include "kernels/error.h"
#include "models/model_config.h"

namespace tetra {
namespace {

/// Parameters of one linear layer.
int64_t linear_size(int64_t in, int64_t out, bool bias) {
  return in * out + (bias ? out : 0);
}

int64_t llama_layer_size(const ModelConfig& c) {
  const int64_t q = c.num_heads * c.head_dim;
  const int64_t kv = c.num_kv_heads * c.head_dim;
  const int64_t attention = linear_size(c.hidden_size, q, c.qkv_bias) + 2 * linear_size(c.hidden_size, kv, c.qkv_bias) +
                            linear_size(q, c.hidden_size, c.out_bias) + (c.qk_norm ? 2 * c.head_dim : 0);
  const int64_t mlp = 2 * linear_size(c.hidden_size, c.intermediate_size, c.mlp_bias) +
                      linear_size(c.intermediate_size, c.hidden_size, c.mlp_bias);
  return attention + mlp + 2 * c.hidden_size;
}

int64_t gpt2_layer_size(const ModelConfig& c) {
  return linear_size(c.hidden_size, 3 * c.hidden_size, true) + linear_size(c.hidden_size, c.hidden_size, true) +
         linear_size(c.hidden_size, c.intermediate_size, true) + linear_size(c.intermediate_size, c.hidden_size, true) +
         4 * c.hidden_size;
}

/// "1, 2, 4 or 8": the divisors of `number`.
std::string divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) {
      found.push_back(i);
    }
  }
  if (found.size() == 1) {
    return "1";
  }
  const int64_t last = found.back();
  found.pop_back();
  return fmt::format("{} or {}", fmt::join(found, ", "), last);
}

void check_parts(const char* degree, int64_t parts, const char* field, int64_t size) {
  require(parts <= size, "{} {} is more than {} {}; use {} or less", degree, parts, field, size, size);
}

}  // namespace

int64_t parameter_count(const ModelConfig& c) {
  const int64_t table = c.vocab_size * c.hidden_size;
  const int64_t head = c.tie_word_embeddings ? 0 : table;
  if (c.model_type == "gpt2") {
    return table + c.max_positions * c.hidden_size + c.num_layers * gpt2_layer_size(c) + 2 * c.hidden_size + head;
  }
  return table + c.num_layers * llama_layer_size(c) + c.hidden_size + head;
}

void check_model_layout(const ModelConfig& c, const Degrees& degrees) {
  require(c.num_heads % degrees.tp == 0, "tp_size {} does not divide num_attention_heads {}; use {}", degrees.tp,
          c.num_heads, divisors(c.num_heads));
  check_parts("tp_size", degrees.tp, "intermediate_size", c.intermediate_size);
  check_parts("tp_size", degrees.tp, "vocab_size", c.vocab_size);
  check_parts("pp_size", degrees.pp, "num_hidden_layers", c.num_layers);
  const int64_t heads = c.num_heads / degrees.tp;
  require(heads % degrees.sp == 0,
          "sp_size {} does not divide the {} heads of a tp rank (num_attention_heads {}); use {}", degrees.sp, heads,
          c.num_heads, divisors(heads));
  require(degrees.ep == 1, "ep_size {}: a {} model has no experts; use 1", degrees.ep, c.model_type);
}

void check_sequence_length(const ModelConfig& c, int64_t seq_len) {
  require(seq_len >= 1, "seq_len {} is not positive", seq_len);
  require(c.model_type != "gpt2" || seq_len <= c.max_positions,
          "seq_len {} is more than the model's n_positions {}; its position embeddings are learned", seq_len,
          c.max_positions);
  require(
      c.sliding_window == 0 || seq_len <= c.sliding_window,
      "seq_len {} is more than the model's sliding_window {}, and windowed attention is not supported; use {} or less",
      seq_len, c.sliding_window, c.sliding_window);
}

}  // namespace tetra
