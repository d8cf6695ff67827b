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
  at::Tensor norm(const Stream& x, const LayerNormParameters& w) const;
  /// Norm and column-parallel layer, the norm's output discarded where that is wanted.
  Varying norm_linear(const Stream& x, const LayerNormParameters& norm_weights, const LinearParameters& layer,
                      const char* site, bool discard) const;
  Stream self_attention(int64_t layer, const Stream& x, const TokenBatch& batch);
  Stream feed_forward(int64_t layer, const Stream& x);

  Gpt2Parameters weights_;
};

}  // namespace tetra
