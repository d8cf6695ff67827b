#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/model_config.h"
#include "models/model_config_rope.h"

namespace tetra {
namespace {

using nlohmann::ordered_json;

const char* architecture_of(const std::string& model_type) {
  if (model_type == "llama") {
    return "LlamaForCausalLM";
  }
  if (model_type == "mistral") {
    return "MistralForCausalLM";
  }
  if (model_type == "qwen2") {
    return "Qwen2ForCausalLM";
  }
  if (model_type == "qwen3") {
    return "Qwen3ForCausalLM";
  }
  require(model_type == "gpt2", "model_type '{}' cannot be written", model_type);
  return "GPT2LMHeadModel";
}

/// The class defaults of token ids may lie outside a small vocabulary; null says that there is no such token.
void set_token_id(ordered_json& root, const char* field, int64_t class_default, int64_t vocab_size) {
  if (!root.contains(field) && class_default >= vocab_size) {
    root[field] = nullptr;
  }
}

void write_gpt2(const ModelConfig& config, ordered_json& root) {
  root["n_embd"] = config.hidden_size;
  root["n_layer"] = config.num_layers;
  root["n_head"] = config.num_heads;
  root["n_positions"] = config.max_positions;
  if (config.intermediate_size == 4 * config.hidden_size) {
    root["n_inner"] = nullptr;
  } else {
    root["n_inner"] = config.intermediate_size;
  }
  if (!root.contains("activation_function")) {
    root["activation_function"] = config.gelu == Gelu::tanh ? "gelu_new" : "gelu";
  }
  root["layer_norm_epsilon"] = config.norm_eps;
  root["scale_attn_weights"] = config.scale_attention;
  root["scale_attn_by_inverse_layer_idx"] = config.scale_attention_by_layer;
  root["embd_pdrop"] = config.embedding_dropout;
  root["resid_pdrop"] = config.residual_dropout;
  root["attn_pdrop"] = config.attention_dropout;
  set_token_id(root, "bos_token_id", 50256, config.vocab_size);
  set_token_id(root, "eos_token_id", 50256, config.vocab_size);
}

void write_window(const ModelConfig& config, ordered_json& root) {
  if (config.model_type == "mistral") {
    root["sliding_window"] = nullptr;
    if (config.sliding_window > 0) {
      root["sliding_window"] = config.sliding_window;
    }
  } else if (config.model_type != "llama" && config.sliding_window > 0 && !root.contains("use_sliding_window")) {
    root["use_sliding_window"] = true;
    root["sliding_window"] = config.sliding_window;
    root["max_window_layers"] = 0;
  }
}

void write_llama_family(const ModelConfig& config, ordered_json& root) {
  root["hidden_size"] = config.hidden_size;
  root["intermediate_size"] = config.intermediate_size;
  root["num_hidden_layers"] = config.num_layers;
  root["num_attention_heads"] = config.num_heads;
  root["num_key_value_heads"] = config.num_kv_heads;
  root["head_dim"] = config.head_dim;
  root["max_position_embeddings"] = config.max_positions;
  root["hidden_act"] = "silu";
  root["rms_norm_eps"] = config.norm_eps;
  root["attention_dropout"] = config.attention_dropout;
  if (config.model_type == "llama" || config.model_type == "qwen3") {
    root["attention_bias"] = config.out_bias;
  }
  if (config.model_type == "llama") {
    root["mlp_bias"] = config.mlp_bias;
  }
  write_window(config, root);
  write_rope(config.rope, root);
  if (config.model_type == "llama" || config.model_type == "mistral") {
    set_token_id(root, "bos_token_id", 1, config.vocab_size);
    set_token_id(root, "eos_token_id", 2, config.vocab_size);
  }
}

}  // namespace

std::string write_model_config(const ModelConfig& config, const std::string& dtype) {
  ordered_json root = config.raw_json.empty() ? ordered_json::object() : ordered_json::parse(config.raw_json);
  root["architectures"] = {architecture_of(config.model_type)};
  root["model_type"] = config.model_type;
  root["vocab_size"] = config.vocab_size;
  root["initializer_range"] = config.initializer_range;
  root["tie_word_embeddings"] = config.tie_word_embeddings;
  if (config.model_type == "gpt2") {
    write_gpt2(config, root);
  } else {
    write_llama_family(config, root);
  }
  root["torch_dtype"] = dtype;
  root["dtype"] = dtype;
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tetra
