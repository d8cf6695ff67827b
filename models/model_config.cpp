#include "models/model_config.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

#include "kernels/error.h"
#include "models/model_config_fields.h"
#include "models/model_config_rope.h"
#include "models/strict_json.h"

namespace tetra {
namespace {

using nlohmann::json;

// Bounds that no real model comes near, and below which products of sizes stay inside 63 bits.
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxWidth = int64_t{1} << 22;
constexpr int64_t kMaxRows = int64_t{1} << 31;

/// What the Llama-like classes of transformers do differently.
struct Family {
  const char* model_type;
  const char* architecture;
  int64_t max_positions;      // defaults of the class
  int64_t num_kv_heads;       // 0: as many as heads
  int64_t head_dim;           // 0: hidden_size / heads
  bool qkv_bias;              // implied, without a field
  bool attention_bias_field;  // attention_bias means q, k, v and o
  bool mlp_bias_field;
  bool qk_norm;
};
constexpr std::array<Family, 4> kFamilies = {{
    {"llama", "LlamaForCausalLM", 2048, 0, 0, false, true, true, false},
    {"mistral", "MistralForCausalLM", 4096 * 32, 8, 0, false, false, false, false},
    {"qwen2", "Qwen2ForCausalLM", 32768, 32, 0, true, false, false, false},
    {"qwen3", "Qwen3ForCausalLM", 32768, 32, 128, false, true, false, true},
}};
constexpr const char* kGpt2Architecture = "GPT2LMHeadModel";

const Family* find_family(std::string_view model_type) {
  for (const auto& family : kFamilies) {
    if (model_type == family.model_type) {
      return &family;
    }
  }
  return nullptr;
}

void check_architecture(const Fields& fields, const char* expected) {
  const json* architectures = fields.find("architectures");
  if (architectures == nullptr) {
    return;
  }
  if (!architectures->is_array()) {
    fields.refuse("architectures", "{} is not a list", shown(*architectures));
  }
  for (const auto& name : *architectures) {
    if (name != expected) {
      fields.refuse("architectures", "{} is not supported; {} is", shown(name), expected);
    }
  }
}

/// Refuses what no model type here does.
void check_common(const Fields& fields, const char* architecture) {
  check_architecture(fields, architecture);
  if (const json* quantization = fields.find("quantization_config")) {
    fields.refuse("quantization_config", "quantized weights are not supported: {}", shown(*quantization));
  }
  for (const char* field : {"use_mrope", "is_encoder_decoder", "add_cross_attention"}) {
    if (fields.boolean(field).value_or(false)) {
      fields.refuse(field, "true is not supported");
    }
  }
}

/// Whether layer_types names windowed layers; nothing where the field is absent.
std::optional<bool> layer_types_slide(const Fields& fields, int64_t num_layers) {
  const json* types = fields.find("layer_types");
  if (types == nullptr) {
    return std::nullopt;
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != num_layers) {
    fields.refuse("layer_types", "is not a list of num_hidden_layers = {} names", num_layers);
  }
  bool slide = false;
  for (const auto& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.refuse("layer_types", "{} is not supported; full_attention and sliding_attention are", shown(type));
    }
    slide = slide || type == "sliding_attention";
  }
  return slide;
}

/// Qwen: a window counts when use_sliding_window says so, and then for the layers from max_window_layers on or those
/// that layer_types names.
int64_t qwen_window(const Fields& fields, int64_t num_layers, std::optional<bool> slide) {
  const bool used = fields.boolean("use_sliding_window").value_or(false);
  const int64_t first = fields.integer("max_window_layers").value_or(28);
  const bool null_window = fields.is_null("sliding_window");
  if (slide.value_or(false) && (!used || null_window)) {
    fields.refuse("layer_types", "names sliding_attention, but use_sliding_window or sliding_window is off");
  }
  if (!used || null_window || !slide.value_or(first < num_layers)) {
    return 0;
  }
  return fields.size_or("sliding_window", kMaxRows, 4096);
}

int64_t parse_window(const Fields& fields, const ModelConfig& config) {
  const auto slide = layer_types_slide(fields, config.num_layers);
  if (config.model_type == "qwen2" || config.model_type == "qwen3") {
    return qwen_window(fields, config.num_layers, slide);
  }
  // Mistral's class windows every layer unless the field is null, whatever layer_types says; Llama's never does.
  const bool windowed = config.model_type == "mistral" && !fields.is_null("sliding_window");
  if (slide.value_or(false) && !windowed) {
    fields.refuse("layer_types", "sliding_attention is not supported for this {} model", config.model_type);
  }
  return windowed ? fields.size_or("sliding_window", kMaxRows, 4096) : 0;
}

void parse_heads(const Fields& fields, const Family& family, ModelConfig& config) {
  config.num_heads = fields.size("num_attention_heads", kMaxWidth);
  // An absent field has the class's default; null means one kv head a head.
  const bool as_heads = family.num_kv_heads == 0 || fields.is_null("num_key_value_heads");
  config.num_kv_heads =
      fields.size_or("num_key_value_heads", kMaxWidth, as_heads ? config.num_heads : family.num_kv_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.refuse("num_key_value_heads", "{}{} does not divide num_attention_heads {}", config.num_kv_heads,
                  fields.has("num_key_value_heads") ? "" : " (the default of the model type)", config.num_heads);
  }
  const bool divides = config.hidden_size % config.num_heads == 0;
  const bool given = fields.has("head_dim") || (family.head_dim != 0 && !fields.is_null("head_dim"));
  // transformers' Llama class demands this even where head_dim is given.
  if (!divides && (!given || config.model_type == "llama")) {
    fields.refuse("num_attention_heads", "{} does not divide hidden_size {}", config.num_heads, config.hidden_size);
  }
  config.head_dim =
      fields.size_or("head_dim", kMaxWidth, given ? family.head_dim : config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0) {
    fields.refuse("head_dim", "{} is odd; rotary embedding needs pairs", config.head_dim);
  }
  if (config.head_dim * config.num_heads > kMaxWidth) {
    fields.refuse("head_dim", "{} times {} heads is too large", config.head_dim, config.num_heads);
  }
}

void check_silu(const Fields& fields) {
  const auto activation = fields.text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    fields.refuse("hidden_act", "'{}' is not supported; silu is", activation);
  }
}

ModelConfig parse_llama_family(const Fields& fields, const Family& family) {
  check_common(fields, family.architecture);
  check_silu(fields);
  ModelConfig config;
  config.model_type = family.model_type;
  config.vocab_size = fields.size("vocab_size", kMaxRows);
  config.hidden_size = fields.size("hidden_size", kMaxWidth);
  config.intermediate_size = fields.size("intermediate_size", kMaxWidth);
  config.num_layers = fields.size("num_hidden_layers", kMaxLayers);
  parse_heads(fields, family, config);
  config.max_positions = fields.size_or("max_position_embeddings", kMaxRows, family.max_positions);
  config.sliding_window = parse_window(fields, config);
  config.norm_eps = fields.positive_or("rms_norm_eps", 1e-6);
  config.initializer_range = fields.positive_or("initializer_range", 0.02);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  const bool attention_bias = family.attention_bias_field && fields.boolean("attention_bias").value_or(false);
  config.qkv_bias = family.qkv_bias || attention_bias;
  config.out_bias = attention_bias;
  config.mlp_bias = family.mlp_bias_field && fields.boolean("mlp_bias").value_or(false);
  config.qk_norm = family.qk_norm;
  config.rope = parse_rope(fields, config.head_dim, config.max_positions);
  config.attention_dropout = fields.probability_or("attention_dropout", 0.0);
  return config;
}

Gelu parse_gelu(const Fields& fields) {
  const auto name = fields.text("activation_function").value_or("gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
    return Gelu::tanh;  // three spellings of one formula
  }
  if (name != "gelu") {
    fields.refuse("activation_function", "'{}' is not supported; gelu, gelu_new, gelu_pytorch_tanh and gelu_fast are",
                  name);
  }
  return Gelu::exact;
}

/// GPT-2's own field name, or the common one that its class takes as well.
int64_t gpt2_size(const Fields& fields, const char* name, const char* common, int64_t max) {
  if (fields.has(name) && fields.has(common) && fields.size(name, max) != fields.size(common, max)) {
    fields.refuse(name, "{} contradicts {} {}", fields.size(name, max), common, fields.size(common, max));
  }
  return !fields.has(name) && fields.has(common) ? fields.size(common, max) : fields.size(name, max);
}

ModelConfig parse_gpt2(const Fields& fields) {
  check_common(fields, kGpt2Architecture);
  if (fields.boolean("reorder_and_upcast_attn").value_or(false)) {
    fields.refuse("reorder_and_upcast_attn", "true is not supported");
  }
  ModelConfig config;
  config.model_type = "gpt2";
  config.vocab_size = fields.size("vocab_size", kMaxRows);
  config.hidden_size = gpt2_size(fields, "n_embd", "hidden_size", kMaxWidth);
  config.intermediate_size = fields.size_or("n_inner", kMaxWidth, 4 * config.hidden_size);
  config.num_layers = gpt2_size(fields, "n_layer", "num_hidden_layers", kMaxLayers);
  config.num_heads = gpt2_size(fields, "n_head", "num_attention_heads", kMaxWidth);
  config.num_kv_heads = config.num_heads;
  if (config.hidden_size % config.num_heads != 0) {
    fields.refuse("n_head", "{} does not divide n_embd {}", config.num_heads, config.hidden_size);
  }
  config.head_dim = config.hidden_size / config.num_heads;
  config.max_positions = gpt2_size(fields, "n_positions", "max_position_embeddings", kMaxRows);
  config.norm_eps = fields.positive_or("layer_norm_epsilon", 1e-5);
  config.initializer_range = fields.positive_or("initializer_range", 0.02);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(true);
  config.qkv_bias = config.out_bias = config.mlp_bias = true;
  config.scale_attention = fields.boolean("scale_attn_weights").value_or(true);
  config.scale_attention_by_layer = fields.boolean("scale_attn_by_inverse_layer_idx").value_or(false);
  config.gelu = parse_gelu(fields);
  config.embedding_dropout = fields.probability_or("embd_pdrop", 0.1);
  config.residual_dropout = fields.probability_or("resid_pdrop", 0.1);
  config.attention_dropout = fields.probability_or("attn_pdrop", 0.1);
  return config;
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& origin) {
  const json root = parse_strict_json(text, origin);
  require(root.is_object(), "{}: not a JSON object", origin);
  const Fields fields(root, origin);
  const auto model_type = fields.text("model_type");
  if (!model_type) {
    fields.refuse("model_type", "is missing; llama, mistral, qwen2, qwen3 and gpt2 are supported");
  }
  const Family* family = find_family(*model_type);
  if (family == nullptr && *model_type != "gpt2") {
    fields.refuse("model_type", "'{}' is not supported; llama, mistral, qwen2, qwen3 and gpt2 are", *model_type);
  }
  ModelConfig config = family != nullptr ? parse_llama_family(fields, *family) : parse_gpt2(fields);
  config.raw_json = text;
  return config;
}

ModelConfig read_model_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "cannot open {}", path);
  std::ostringstream text;
  text << file.rdbuf();
  require(!file.bad(), "cannot read {}", path);
  return parse_model_config(text.str(), path);
}

}  // namespace tetra
