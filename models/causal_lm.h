#pragma once
// What every decoder-only language model offers to training, generation and export.

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "models/model_config.h"
#include "parallel/parameter.h"
#include "parallel/piece_hooks.h"
#include "parallel/recompute/policy.h"
#include "parallel/tensor/regions.h"

namespace tetra {

/// One micro-batch, equal on all tp ranks. B sequences of S tokens.
struct TokenBatch {
  at::Tensor ids;        // [B, S] int64, all in [0, vocab_size)
  at::Tensor labels;     // [B, S] int64, ALREADY shifted: labels[b][s] is what follows ids[b][s]; kIgnoreIndex is not
                         // counted. May be undefined where no loss is asked for.
  at::Tensor positions;  // [S] int64, global
};

/// A batch of whole sequences, positions 0 .. S-1.
TokenBatch make_token_batch(at::Tensor ids, at::Tensor labels = {});

/// One rank's part of a model: an embedding (piece 0), a row of blocks (1 ...), a head (the last piece). Every function
/// is collective over tp.
class CausalLM {
 public:
  virtual ~CausalLM() = default;

  virtual Stream embed(const TokenBatch& batch) = 0;
  virtual Stream block(int64_t layer, const Stream& x, const TokenBatch& batch) = 0;
  /// Final norm and output head: logits [T, V/tp].
  virtual Varying head(const Stream& x) = 0;

  /// Called around each piece by causal_loss and full_logits; null for nothing. Must outlive its use.
  void set_hooks(PieceHooks* hooks) { hooks_ = hooks; }
  PieceHooks* hooks() const { return hooks_; }

  void set_recompute(const RecomputePolicy& policy) { recompute_ = policy; }
  const RecomputePolicy& recompute_policy() const { return recompute_; }

  const ModelConfig& config() const { return config_; }
  const TensorParallel& tensor_parallel() const { return tp_; }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }

 protected:
  /// Discards what is cheap of `layer`. Outputs that are gathered over tp before their use are not what is kept.
  bool is_selective(int64_t layer) const { return recompute_.of_layer(layer) == Recompute::selective; }

  CausalLM(ModelConfig config, Precision precision, const TensorParallel& tp, at::Device device);

  ModelConfig config_;
  TensorParallel tp_;
  ParameterSet parameters_;

 private:
  PieceHooks* hooks_ = nullptr;
  RecomputePolicy recompute_;
};

/// Builds this rank's part of the model, without memory: a ModelState gives the parameters theirs.
std::unique_ptr<CausalLM> make_causal_lm(const ModelConfig& config, Precision precision, const TensorParallel& tp,
                                         at::Device device = at::kCPU);

/// `scale` * the SUM over counted tokens of the cross entropy: a scalar, equal on all tp ranks. Pass 1/(global number
/// of counted tokens) to train on the token mean.
at::Tensor causal_loss(CausalLM& model, const TokenBatch& batch, double scale);

/// Logits of the whole vocabulary on every rank, without gradients: [B, S, V].
at::Tensor full_logits(CausalLM& model, const TokenBatch& batch);

}  // namespace tetra
