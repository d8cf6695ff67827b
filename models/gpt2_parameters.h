#pragma once
// The parameters of GPT-2 and how each is cut over tp: the distributed twin of gpt2.cpp. Weights are Conv1D's [in,
// out].

#include <vector>

#include "models/model_config.h"
#include "parallel/parameter.h"
#include "parallel/tensor/linear.h"

namespace tetra {

struct LayerNormParameters {
  Parameter* weight;  // [H]
  Parameter* bias;    // [H]
};

struct Gpt2Layer {
  LayerNormParameters ln_1, ln_2;
  LinearParameters qkv;   // [H, 3H]: heads of q, of k and of v are each cut
  LinearParameters out;   // [H, H]: cut by rows
  LinearParameters fc;    // [H, F]: cut by columns
  LinearParameters proj;  // [F, H]: cut by rows
};

struct Gpt2Parameters {
  Parameter* embedding;  // wte [V, H]: cut by rows, also the head
  Parameter* positions;  // wpe [P, H]
  std::vector<Gpt2Layer> layers;
  LayerNormParameters ln_f;
  Parameter* head;  // the embedding itself where tied
};

/// Adds them to `set`, under Hugging Face's names and in its order.
Gpt2Parameters add_gpt2_parameters(ParameterSet& set, const ModelConfig& config, const TensorParallel& tp);

}  // namespace tetra
