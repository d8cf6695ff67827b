#pragma once
// What a Hugging Face config.json says, read strictly: what Tetra does not do is refused by name, never ignored.

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/activation.h"
#include "kernels/rope.h"
#include "mesh/degrees.h"

namespace tetra {

/// One struct for all decoder families; the reader turns each family's fields, defaults and quirks into these.
struct ModelConfig {
  std::string model_type;  // llama | mistral | qwen2 | qwen3 | gpt2
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  int64_t sliding_window = 0;  // tokens that a token sees, itself included; 0: all. Attention here is always full, so a
                               // longer sequence is refused (check_sequence_length)
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // bias of q, k, v projections
  bool out_bias = false;  // bias of the attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;                   // Qwen3: RMSNorm over head_dim on q and k
  bool scale_attention = true;            // GPT-2 scale_attn_weights
  bool scale_attention_by_layer = false;  // GPT-2 scale_attn_by_inverse_layer_idx
  Gelu gelu = Gelu::tanh;                 // GPT-2
  RopeConfig rope;                        // Llama family
  double embedding_dropout = 0.0;
  double residual_dropout = 0.0;
  double attention_dropout = 0.0;

  std::string raw_json;  // the text it was read from, for writing it back
};

/// Reads the text of a config.json; `origin` names it in errors. Throws Error "origin: field: ..." on a missing,
/// wrongly typed or contradictory field, on a model type that is not known, and on anything asked for that Tetra does
/// not do yet. Fields that do not change the numbers, and fields nobody knows, are ignored. Absent fields have the
/// defaults of the model type's class in transformers.
ModelConfig parse_model_config(const std::string& json, const std::string& origin);
ModelConfig read_model_config(const std::string& folder);

/// The config.json to write: fields of `config` in a form that transformers 4 and 5 both read, other fields of raw_json
/// kept; `dtype` ("float32", ...) is the type the weights are stored in.
std::string write_model_config(const ModelConfig& config, const std::string& dtype);

/// Number of parameters; a tied head is not counted twice.
int64_t parameter_count(const ModelConfig& config);

/// Throws Error when the degrees cannot work for this model, naming field and values and what would work:
/// "tp_size 3 does not divide num_attention_heads 8; use 1, 2, 4 or 8". kv heads may be fewer than tp (ranks share
/// them), and tp need not divide the vocabulary or the feed-forward width.
void check_model_layout(const ModelConfig& config, const Degrees& degrees);

/// Throws Error when sequences of `seq_len` tokens cannot be trained right: more than the learned positions (GPT-2), or
/// more than the sliding window. Rotary models may go beyond max_position_embeddings.
void check_sequence_length(const ModelConfig& config, int64_t seq_len);

}  // namespace tetra
