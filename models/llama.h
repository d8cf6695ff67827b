#pragma once
// The Llama family (Touvron et al., 2023): Llama, Mistral, Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k).

#include "models/causal_lm.h"
#include "models/llama_parameters.h"
#include "parallel/tensor/attention.h"

namespace tetra {

class Llama final : public CausalLM {
 public:
  Llama(const ModelConfig& config, Precision precision, const TensorParallel& tp, at::Device device);

  Stream embed(const TokenBatch& batch) override;
  Stream block(int64_t layer, const Stream& x, const TokenBatch& batch) override;
  Varying head(const Stream& x) override;

 private:
  at::Tensor norm(const Stream& x, const Parameter& weight) const;
  /// Norm and column-parallel layers, the norm's output discarded where that is wanted.
  std::vector<Varying> norm_linear(const Stream& x, const Parameter& norm_weight,
                                   const std::vector<LinearParameters>& layers, const char* site, bool discard) const;
  Stream self_attention(int64_t layer, const Stream& x, const TokenBatch& batch);
  Stream feed_forward(int64_t layer, const Stream& x);
  const RopeTable& rope_table(int64_t positions);

  LlamaParameters weights_;
  LocalHeads heads_;
  RopeTable rope_table_;
};

}  // namespace tetra
