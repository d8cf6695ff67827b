#include "models/llama_parameters.h"

#include <string>

#include <fmt/format.h>

namespace tetra {
namespace {

class Builder {
 public:
  Builder(ParameterSet& set, const ModelConfig& config, const TensorParallel& tp)
      : set_(set),
        c_(config),
        tp_(tp.size()),
        normal_{Initial::Kind::normal, config.initializer_range},
        stream_gradient_(stream_gradient(tp)) {}

  LlamaParameters build() {
    LlamaParameters p;
    set_.begin_piece(/*weights_in_backward=*/false);
    p.embedding = &set_.add("model.embed_tokens.weight", rows({c_.vocab_size, c_.hidden_size}), normal_);
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      set_.begin_piece();
      p.layers.push_back(layer(fmt::format("model.layers.{}.", i)));
    }
    set_.begin_piece();
    p.final_norm = stream_norm("model.norm.weight");
    p.head = c_.tie_word_embeddings ? set_.share(p.embedding)
                                    : &set_.add("lm_head.weight", rows({c_.vocab_size, c_.hidden_size}), normal_);
    return p;
  }

 private:
  LlamaLayer layer(const std::string& prefix) {
    const std::string attention = prefix + "self_attn.";
    const int64_t query_width = c_.num_heads * c_.head_dim;
    LlamaLayer w;
    w.q = linear(attention + "q_proj", by_heads({query_width, c_.hidden_size}), by_heads({query_width}), c_.qkv_bias);
    w.k = kv(attention + "k_proj");
    w.v = kv(attention + "v_proj");
    w.out = linear(attention + "o_proj", TpCut::even({c_.hidden_size, query_width}, 1, tp_, c_.head_dim), whole_bias(),
                   c_.out_bias);
    if (c_.qk_norm) {
      w.q_norm = head_norm(attention + "q_norm.weight");
      w.k_norm = head_norm(attention + "k_norm.weight");
    }
    w.gate = linear(prefix + "mlp.gate_proj", rows({c_.intermediate_size, c_.hidden_size}),
                    rows({c_.intermediate_size}), c_.mlp_bias);
    w.up = linear(prefix + "mlp.up_proj", rows({c_.intermediate_size, c_.hidden_size}), rows({c_.intermediate_size}),
                  c_.mlp_bias);
    w.down = linear(prefix + "mlp.down_proj", TpCut::even({c_.hidden_size, c_.intermediate_size}, 1, tp_), whole_bias(),
                    c_.mlp_bias);
    w.input_norm = stream_norm(prefix + "input_layernorm.weight");
    w.post_attention_norm = stream_norm(prefix + "post_attention_layernorm.weight");
    return w;
  }

  // kv heads that several ranks hold get a gradient from each.
  LinearParameters kv(const std::string& name) {
    const int64_t width = c_.num_kv_heads * c_.head_dim;
    const auto cut = [&](std::vector<int64_t> shape) {
      return TpCut::kv_heads(std::move(shape), tp_, c_.num_heads, c_.num_kv_heads);
    };
    return linear(name, cut({width, c_.hidden_size}), cut({width}), c_.qkv_bias, TpGradient::partial);
  }

  // Row-parallel biases are added on the stream.
  LinearParameters linear(const std::string& name, const TpCut& weight, const TpCut& bias, bool has_bias,
                          TpGradient gradient = TpGradient::complete) {
    LinearParameters p;
    p.weight = &set_.add(name + ".weight", weight, normal_, gradient);
    if (has_bias) {
      p.bias = &set_.add(name + ".bias", bias, Initial::zeros(),
                         bias.is_replicated() && !weight.is_replicated() ? stream_gradient_ : gradient);
    }
    return p;
  }

  Parameter* stream_norm(const std::string& name) {
    return &set_.add(name, TpCut::replicated({c_.hidden_size}, tp_), Initial::ones(), stream_gradient_);
  }
  // Shared by all heads, each rank sees its own heads alone.
  Parameter* head_norm(const std::string& name) {
    return &set_.add(name, TpCut::replicated({c_.head_dim}, tp_), Initial::ones(), TpGradient::partial);
  }

  TpCut rows(std::vector<int64_t> shape) const { return TpCut::even(std::move(shape), 0, tp_); }
  TpCut by_heads(std::vector<int64_t> shape) const { return TpCut::even(std::move(shape), 0, tp_, c_.head_dim); }
  TpCut whole_bias() const { return TpCut::replicated({c_.hidden_size}, tp_); }

  ParameterSet& set_;
  const ModelConfig& c_;
  int64_t tp_;
  Initial normal_;
  TpGradient stream_gradient_;
};

}  // namespace

LlamaParameters add_llama_parameters(ParameterSet& set, const ModelConfig& config, const TensorParallel& tp) {
  return Builder(set, config, tp).build();
}

}  // namespace tetra
