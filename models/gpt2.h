#pragma once
// GPT-2 (Radford et al., 2019): learned positions, LayerNorm before each block, GELU.

#include "models/causal_lm.h"
#include "models/gpt2_parameters.h"

namespace tetra {

class Gpt2 final : public CausalLM {
 public:
  Gpt2(const ModelConfig& config, Precision precision, const TensorParallel& tp, at::Device device);

  Stream embed(const TokenBatch& batch) override;
  Stream block(int64_t layer, const Stream& x, const TokenBatch& batch) override;
  Varying head(const Stream& x) override;

 private:
  Stream norm(const Stream& x, const LayerNormParameters& w) const;
  Stream self_attention(int64_t layer, const Stream& x, const TokenBatch& batch);
  Stream feed_forward(const Gpt2Layer& w, const Stream& x);

  Gpt2Parameters weights_;
};

}  // namespace tetra
