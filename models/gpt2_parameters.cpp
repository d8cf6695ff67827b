#include "models/gpt2_parameters.h"

#include <cmath>
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

  Gpt2Parameters build() {
    Gpt2Parameters p;
    set_.begin_piece(/*weights_in_backward=*/false);
    p.embedding = &set_.add("transformer.wte.weight", TpCut::even({c_.vocab_size, c_.hidden_size}, 0, tp_), normal_);
    p.positions = &set_.add("transformer.wpe.weight", TpCut::replicated({c_.max_positions, c_.hidden_size}, tp_),
                            normal_, stream_gradient_);
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      set_.begin_piece();
      p.layers.push_back(layer(fmt::format("transformer.h.{}.", i)));
    }
    set_.begin_piece();
    p.ln_f = norm("transformer.ln_f");
    p.head = c_.tie_word_embeddings
                 ? set_.share(p.embedding)
                 : &set_.add("lm_head.weight", TpCut::even({c_.vocab_size, c_.hidden_size}, 0, tp_), normal_);
    return p;
  }

 private:
  Gpt2Layer layer(const std::string& prefix) {
    const int64_t h = c_.hidden_size;
    const int64_t f = c_.intermediate_size;
    // Projections back to the stream start smaller: there are two a layer.
    const Initial residual{Initial::Kind::normal,
                           c_.initializer_range / std::sqrt(2.0 * static_cast<double>(c_.num_layers))};
    Gpt2Layer w;
    w.ln_1 = norm(prefix + "ln_1");
    w.qkv = column(prefix + "attn.c_attn", TpCut::even({h, 3 * h}, 1, tp_, c_.head_dim, 3),
                   TpCut::even({3 * h}, 0, tp_, c_.head_dim, 3));
    w.out = row(prefix + "attn.c_proj", TpCut::even({h, h}, 0, tp_, c_.head_dim), residual);
    w.ln_2 = norm(prefix + "ln_2");
    w.fc = column(prefix + "mlp.c_fc", TpCut::even({h, f}, 1, tp_), TpCut::even({f}, 0, tp_));
    w.proj = row(prefix + "mlp.c_proj", TpCut::even({f, h}, 0, tp_), residual);
    return w;
  }

  LinearParameters column(const std::string& name, const TpCut& weight, const TpCut& bias) {
    return {&set_.add(name + ".weight", weight, normal_), &set_.add(name + ".bias", bias, Initial::zeros())};
  }
  LinearParameters row(const std::string& name, const TpCut& weight, const Initial& initial) {
    return {&set_.add(name + ".weight", weight, initial), on_stream(name + ".bias", Initial::zeros())};
  }
  LayerNormParameters norm(const std::string& name) {
    return {on_stream(name + ".weight", Initial::ones()), on_stream(name + ".bias", Initial::zeros())};
  }
  Parameter* on_stream(const std::string& name, const Initial& initial) {
    return &set_.add(name, TpCut::replicated({c_.hidden_size}, tp_), initial, stream_gradient_);
  }

  ParameterSet& set_;
  const ModelConfig& c_;
  int64_t tp_;
  Initial normal_;
  TpGradient stream_gradient_;
};

}  // namespace

Gpt2Parameters add_gpt2_parameters(ParameterSet& set, const ModelConfig& config, const TensorParallel& tp) {
  return Builder(set, config, tp).build();
}

}  // namespace tetra
