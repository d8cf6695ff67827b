#pragma once
// The parameters of the Llama family and how each is cut over tp: the distributed twin of llama.cpp.

#include <vector>

#include "models/model_config.h"
#include "parallel/parameter.h"
#include "parallel/tensor/linear.h"

namespace tetra {

struct LlamaLayer {
  Parameter* input_norm;           // [H]
  LinearParameters q, k, v;        // [A*D, H], [G*D, H] twice: cut by heads
  Parameter* q_norm = nullptr;     // [D], Qwen3
  Parameter* k_norm = nullptr;     // [D], Qwen3
  LinearParameters out;            // [H, A*D]: cut by heads
  Parameter* post_attention_norm;  // [H]
  LinearParameters gate, up;       // [F, H]: cut by rows
  LinearParameters down;           // [H, F]: cut by columns
};

struct LlamaParameters {
  Parameter* embedding;  // [V, H]: cut by rows
  std::vector<LlamaLayer> layers;
  Parameter* final_norm;  // [H]
  Parameter* head;        // [V, H]: cut by rows; the embedding itself where tied
};

/// Adds them to `set`, under Hugging Face's names and in its order.
LlamaParameters add_llama_parameters(ParameterSet& set, const ModelConfig& config, const TensorParallel& tp);

}  // namespace tetra
