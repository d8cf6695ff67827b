#include "models/model_config.h"

#include <fstream>
#include <functional>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace tetra {
namespace {

using nlohmann::json;

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

std::string slurp(const std::string& name) {
  std::ifstream file(std::string(TETRA_TEST_DATA) + "/models/data/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

ModelConfig from_file(const std::string& name) {
  return parse_model_config(slurp(name), name);
}
ModelConfig from_json(const json& object) {
  return parse_model_config(object.dump(), "config.json");
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string refusal(const json& object) {
  return message_of([&] { from_json(object); });
}

const json kLlama = {{"model_type", "llama"},   {"vocab_size", 100},      {"hidden_size", 32},
                     {"intermediate_size", 64}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                     {"num_key_value_heads", 2}};
const json kGpt2 = {{"model_type", "gpt2"}, {"vocab_size", 100}, {"n_embd", 32},
                    {"n_layer", 2},         {"n_head", 4},       {"n_positions", 64}};

/// `base` with the fields of `changes`.
json with(json base, const json& changes) {
  base.update(changes);
  return base;
}
json without(json base, const std::string& field) {
  base.erase(field);
  return base;
}
json of_type(const std::string& model_type, const json& changes = json::object()) {
  return with(with(kLlama, {{"model_type", model_type}}), changes);
}

struct Known {
  const char* file;
  int64_t parameters;
};
// The published counts.
const Known kKnown[] = {{"llama-2-7b.json", 6738415616},
                        {"llama-3-8b.json", 8030261248},
                        {"llama-3.1-8b.json", 8030261248},
                        {"llama-3.1-8b.v5.json", 8030261248},
                        {"llama-3.1-8b-instruct.json", 8030261248},
                        {"llama-3.2-1b.json", 1235814400},
                        {"qwen2.5-0.5b.json", 494032768},
                        {"qwen2.5-0.5b.v5.json", 494032768},
                        {"qwen2.5-7b.json", 7615616512},
                        {"qwen3-0.6b.json", 596049920},
                        {"qwen3-8b.json", 8190735360},
                        {"mistral-7b-v0.1.json", 7241732096},
                        {"gpt2.json", 124439808},
                        {"gpt2.v5.json", 124439808}};

TEST(ModelConfigTest, CountsTheParametersOfKnownModels) {
  for (const auto& known : kKnown) {
    EXPECT_EQ(parameter_count(from_file(known.file)), known.parameters) << known.file;
  }
}

TEST(ModelConfigTest, Llama2HasTheOldDefaults) {
  const auto c = from_file("llama-2-7b.json");
  EXPECT_EQ(c.model_type, "llama");
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_EQ(c.rope.type, "default");
  EXPECT_EQ(c.rope.head_dim, 128);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.num_kv_heads, 32);
  EXPECT_EQ(c.max_positions, 4096);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_FALSE(c.tie_word_embeddings || c.qkv_bias || c.out_bias || c.mlp_bias || c.qk_norm);
  EXPECT_EQ(c.attention_dropout, 0.0);
}

TEST(ModelConfigTest, Llama31InBothSpellings) {
  for (const auto* file : {"llama-3.1-8b.json", "llama-3.1-8b.v5.json", "llama-3.1-8b-instruct.json"}) {
    const auto c = from_file(file);
    EXPECT_EQ(c.rope.theta, 500000.0) << file;
    EXPECT_EQ(c.rope.type, "llama3") << file;
    EXPECT_EQ(c.rope.factor, 8.0) << file;
    EXPECT_EQ(c.rope.low_freq_factor, 1.0) << file;
    EXPECT_EQ(c.rope.high_freq_factor, 4.0) << file;
    EXPECT_EQ(c.rope.original_max_position_embeddings, 8192) << file;
    EXPECT_EQ(c.num_kv_heads, 8) << file;
    EXPECT_EQ(c.head_dim, 128) << file;
  }
  EXPECT_EQ(from_file("llama-3.2-1b.json").rope.factor, 32.0);
  EXPECT_TRUE(from_file("llama-3.2-1b.json").tie_word_embeddings);
}

TEST(ModelConfigTest, QwenBiasesAndWindows) {
  for (const auto* file : {"qwen2.5-0.5b.json", "qwen2.5-0.5b.v5.json"}) {
    const auto c = from_file(file);
    EXPECT_TRUE(c.qkv_bias && !c.out_bias && !c.mlp_bias && c.tie_word_embeddings && !c.qk_norm) << file;
    EXPECT_EQ(c.sliding_window, 0) << file;
    EXPECT_EQ(c.rope.theta, 1e6) << file;
    EXPECT_EQ(c.num_heads, 14) << file;
    EXPECT_EQ(c.num_kv_heads, 2) << file;
  }
  const auto c = from_file("qwen3-0.6b.json");
  EXPECT_TRUE(c.qk_norm && !c.qkv_bias && !c.out_bias);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.num_heads * c.head_dim, 2048);
  EXPECT_EQ(c.hidden_size, 1024);
}

TEST(ModelConfigTest, Gpt2) {
  for (const auto* file : {"gpt2.json", "gpt2.v5.json"}) {
    const auto c = from_file(file);
    EXPECT_EQ(c.hidden_size, 768) << file;
    EXPECT_EQ(c.intermediate_size, 3072) << file;
    EXPECT_EQ(c.num_layers, 12) << file;
    EXPECT_EQ(c.num_heads, 12) << file;
    EXPECT_EQ(c.num_kv_heads, 12) << file;
    EXPECT_EQ(c.head_dim, 64) << file;
    EXPECT_EQ(c.vocab_size, 50257) << file;
    EXPECT_EQ(c.max_positions, 1024) << file;
    EXPECT_TRUE(c.tie_word_embeddings && c.qkv_bias && c.out_bias && c.mlp_bias && c.scale_attention) << file;
    EXPECT_EQ(c.gelu, Gelu::tanh) << file;
    EXPECT_EQ(c.embedding_dropout, 0.1) << file;
    EXPECT_EQ(c.residual_dropout, 0.1) << file;
    EXPECT_EQ(c.attention_dropout, 0.1) << file;
  }
}

TEST(ModelConfigTest, RefusesOtherModelTypesByName) {
  for (const auto* file : {"bert-base-uncased.json", "gemma-2b.json", "gemma-7b.json", "mixtral-8x7b-v0.1.json",
                           "mixtral-8x7b-v0.1.v5.json"}) {
    const auto text = slurp(file);
    const auto message = message_of([&] { parse_model_config(text, file); });
    EXPECT_CONTAINS(message, fmt::format("'{}' is not supported", json::parse(text)["model_type"].get<std::string>()));
    EXPECT_CONTAINS(message, "llama, mistral, qwen2, qwen3 and gpt2");
    EXPECT_CONTAINS(message, file);
  }
}

TEST(ModelConfigTest, ClassDefaults) {
  EXPECT_EQ(from_json(without(kLlama, "num_key_value_heads")).num_kv_heads, 4);
  EXPECT_EQ(from_json(with(kLlama, {{"num_key_value_heads", nullptr}})).num_kv_heads, 4);
  const json wide = {{"num_attention_heads", 16}};
  EXPECT_EQ(from_json(without(of_type("mistral", wide), "num_key_value_heads")).num_kv_heads, 8);
  EXPECT_EQ(from_json(of_type("mistral", {{"num_key_value_heads", nullptr}})).num_kv_heads, 4);
  EXPECT_CONTAINS(refusal(without(of_type("qwen2"), "num_key_value_heads")),
                  "num_key_value_heads: 32 (the default of the model type) does not divide num_attention_heads 4");
  EXPECT_EQ(from_json(with(kLlama, {{"head_dim", nullptr}})).head_dim, 8);
  EXPECT_EQ(from_json(with(kLlama, {{"head_dim", 6}})).head_dim, 6);
  EXPECT_EQ(from_json(of_type("qwen3")).head_dim, 128);
  EXPECT_EQ(from_json(of_type("qwen3", {{"head_dim", nullptr}})).head_dim, 8);
  EXPECT_EQ(from_json(kLlama).norm_eps, 1e-6);
  EXPECT_EQ(from_json(kLlama).max_positions, 2048);
  EXPECT_EQ(from_json(kGpt2).norm_eps, 1e-5);
  EXPECT_FALSE(from_json(with(kGpt2, {{"tie_word_embeddings", false}})).tie_word_embeddings);
}

TEST(ModelConfigTest, BiasFieldsOfEachFamily) {
  const json bias = {{"attention_bias", true}, {"mlp_bias", true}};
  const auto llama = from_json(with(kLlama, bias));
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias);
  const auto qwen3 = from_json(of_type("qwen3", bias));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.out_bias && !qwen3.mlp_bias);
  const auto qwen2 = from_json(of_type("qwen2", bias));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias && !qwen2.mlp_bias);
  const auto mistral = from_json(of_type("mistral", bias));
  EXPECT_FALSE(mistral.qkv_bias || mistral.out_bias || mistral.mlp_bias);
}

TEST(ModelConfigTest, RotarySpellings) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 64}};
  EXPECT_EQ(from_json(with(kLlama, {{"rope_theta", 500000}})).rope.theta, 5e5);
  EXPECT_EQ(from_json(with(kLlama, {{"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}}})).rope.theta,
            5e5);
  EXPECT_EQ(from_json(with(kLlama, {{"rope_parameters", {{"rope_type", "default"}}}, {"rope_theta", 5e5}})).rope.theta,
            5e5);
  EXPECT_EQ(from_json(with(kLlama, {{"rope_scaling", json::object()}, {"rope_parameters", {{"rope_theta", 5e5}}}}))
                .rope.theta,
            5e5);
  const auto linear =
      from_json(with(kLlama, {{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}, {"rope_theta", 5e5}}));
  EXPECT_EQ(linear.rope.type, "linear");
  EXPECT_EQ(linear.rope.factor, 2.5);
  EXPECT_EQ(linear.rope.theta, 5e5);
  const json nested = {{"full_attention", with(llama3, {{"rope_theta", 7e5}})}};
  EXPECT_EQ(from_json(with(kLlama, {{"rope_parameters", nested}})).rope.theta, 7e5);
  EXPECT_EQ(from_json(with(kLlama, {{"rope_parameters", nested}})).rope.factor, 8.0);
  EXPECT_EQ(from_json(with(kLlama, {{"rope_scaling", without(llama3, "original_max_position_embeddings")},
                                    {"max_position_embeddings", 512}}))
                .rope.original_max_position_embeddings,
            512);
}

TEST(ModelConfigTest, RefusesRotarySettings) {
  const auto scaling = [](const json& value) { return refusal(with(kLlama, {{"rope_scaling", value}})); };
  for (const auto* type : {"yarn", "dynamic", "longrope", "mrope", "su"}) {
    EXPECT_CONTAINS(scaling({{"rope_type", type}, {"factor", 2}}), fmt::format("'{}' is not supported", type));
    EXPECT_CONTAINS(scaling({{"type", type}, {"factor", 2}}), "default, linear and llama3");
  }
  EXPECT_CONTAINS(scaling({{"rope_type", "linear"}}), "rope_scaling: factor: is missing");
  EXPECT_CONTAINS(scaling({{"rope_type", "linear"}, {"factor", 0.5}}), "below 1");
  EXPECT_CONTAINS(scaling({{"rope_type", "linear"}, {"factor", "2"}}), "not a number");
  EXPECT_CONTAINS(scaling({{"rope_type", "llama3"}, {"factor", 2}}), "low_freq_factor: is missing");
  EXPECT_CONTAINS(scaling({{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}, {"high_freq_factor", 1}}),
                  "not below high_freq_factor");
  EXPECT_CONTAINS(scaling({{"rope_type", "linear"}, {"type", "default"}, {"factor", 2}}), "contradicts");
  EXPECT_CONTAINS(scaling("linear"), "not an object");
  EXPECT_CONTAINS(scaling({{"rope_type", 3}}), "not a string");
  EXPECT_CONTAINS(scaling({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}), "partial_rotary_factor: 0.5");
  EXPECT_CONTAINS(refusal(with(kLlama, {{"partial_rotary_factor", 0.5}})), "partial_rotary_factor: 0.5");
  EXPECT_CONTAINS(refusal(with(kLlama, {{"rope_theta", 0}})), "not positive");
  EXPECT_CONTAINS(refusal(with(kLlama, {{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 5e5}}}})),
                  "contradicts");
  EXPECT_CONTAINS(refusal(with(kLlama, {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                                        {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}}}})),
                  "contradicts rope_parameters");
  EXPECT_CONTAINS(
      refusal(
          with(kLlama, {{"rope_parameters",
                         {{"full_attention", {{"rope_theta", 1e4}}}, {"sliding_attention", {{"rope_theta", 1e6}}}}}})),
      "differ between layer types");
}

TEST(ModelConfigTest, SlidingWindows) {
  EXPECT_EQ(from_file("mistral-7b-v0.1.json").sliding_window, 4096);
  EXPECT_EQ(from_json(of_type("mistral")).sliding_window, 4096);
  EXPECT_EQ(from_json(of_type("mistral", {{"sliding_window", nullptr}})).sliding_window, 0);
  EXPECT_EQ(from_json(of_type("llama", {{"sliding_window", 8}})).sliding_window, 0);  // the class does not know it
  const json on = {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}};
  EXPECT_EQ(from_json(of_type("qwen2", on)).sliding_window, 8);
  EXPECT_EQ(from_json(of_type("qwen2", with(on, {{"max_window_layers", 2}}))).sliding_window, 0);
  EXPECT_EQ(from_json(of_type("qwen2", with(on, {{"use_sliding_window", false}}))).sliding_window, 0);
  EXPECT_EQ(from_json(of_type("qwen3", with(on, {{"sliding_window", nullptr}}))).sliding_window, 0);
  const json slide = json::array({"full_attention", "sliding_attention"});
  const json full = json::array({"full_attention", "full_attention"});
  EXPECT_EQ(from_json(of_type("qwen2", with(on, {{"layer_types", full}}))).sliding_window, 0);
  EXPECT_EQ(from_json(of_type("qwen2", with(on, {{"layer_types", slide}, {"max_window_layers", 9}}))).sliding_window,
            8);
  EXPECT_CONTAINS(refusal(of_type("qwen2", {{"layer_types", slide}})), "layer_types: names sliding_attention");
  EXPECT_CONTAINS(refusal(of_type("llama", {{"layer_types", slide}})), "sliding_attention is not supported");
  EXPECT_CONTAINS(refusal(of_type("qwen3", {{"layer_types", json::array({"full_attention"})}})),
                  "num_hidden_layers = 2");
  EXPECT_CONTAINS(refusal(of_type("qwen3", {{"layer_types", json::array({"full_attention", "mamba"})}})), "\"mamba\"");
  EXPECT_CONTAINS(refusal(of_type("mistral", {{"sliding_window", 0}})), "sliding_window: 0");
}

TEST(ModelConfigTest, SequenceLengths) {
  const auto mistral = from_file("mistral-7b-v0.1.json");
  EXPECT_NO_THROW(check_sequence_length(mistral, 4096));
  EXPECT_CONTAINS(message_of([&] { check_sequence_length(mistral, 4097); }), "sliding_window 4096");
  const auto gpt2 = from_file("gpt2.json");
  EXPECT_NO_THROW(check_sequence_length(gpt2, 1024));
  EXPECT_CONTAINS(message_of([&] { check_sequence_length(gpt2, 1025); }), "n_positions 1024");
  EXPECT_NO_THROW(check_sequence_length(from_file("llama-2-7b.json"), 1 << 20));
  EXPECT_CONTAINS(message_of([&] { check_sequence_length(gpt2, 0); }), "seq_len 0");
}

struct Refused {
  const char* changes;
  const char* message;
};

TEST(ModelConfigTest, RefusesLlamaFields) {
  const Refused refused[] = {
      {R"({"hidden_act": "gelu"})", "hidden_act: 'gelu' is not supported; silu is"},
      {R"({"quantization_config": {"bits": 4}})", "quantization_config"},
      {R"({"use_mrope": true})", "use_mrope: true"},
      {R"({"architectures": ["LlamaForSequenceClassification"]})", "LlamaForCausalLM"},
      {R"({"architectures": "LlamaForCausalLM"})", "architectures: \"LlamaForCausalLM\" is not a list"},
      {R"({"vocab_size": null})", "vocab_size: is missing"},
      {R"({"hidden_size": null})", "hidden_size: is missing"},
      {R"({"intermediate_size": null})", "intermediate_size: is missing"},
      {R"({"num_hidden_layers": null})", "num_hidden_layers: is missing"},
      {R"({"num_attention_heads": null})", "num_attention_heads: is missing"},
      {R"({"vocab_size": "100"})", "vocab_size: \"100\" is not an integer"},
      {R"({"vocab_size": 100.0})", "vocab_size: 100.0 is not an integer"},
      {R"({"vocab_size": true})", "vocab_size: true is not an integer"},
      {R"({"vocab_size": [100]})", "vocab_size: [100] is not an integer"},
      {R"({"hidden_size": 0})", "hidden_size: 0 is not in 1"},
      {R"({"hidden_size": -32})", "hidden_size: -32 is not in 1"},
      {R"({"hidden_size": 18446744073709551615})", "not an integer"},
      {R"({"hidden_size": 4611686018427387904})", "is not in 1"},
      {R"({"num_hidden_layers": 0})", "num_hidden_layers: 0"},
      {R"({"num_attention_heads": 3, "num_key_value_heads": 3})",
       "num_attention_heads: 3 does not divide hidden_size 32"},
      {R"({"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8})", "3 does not divide hidden_size 32"},
      {R"({"num_key_value_heads": 3})", "num_key_value_heads: 3 does not divide num_attention_heads 4"},
      {R"({"num_key_value_heads": 8})", "num_key_value_heads: 8 does not divide num_attention_heads 4"},
      {R"({"head_dim": 7})", "head_dim: 7 is odd"},
      {R"({"head_dim": 0})", "head_dim: 0"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps: 0 is not positive"},
      {R"({"rms_norm_eps": -1e-6})", "rms_norm_eps"},
      {R"({"rms_norm_eps": "1e-6"})", "rms_norm_eps: \"1e-6\" is not a number"},
      {R"({"tie_word_embeddings": "yes"})", "tie_word_embeddings: \"yes\" is not true or false"},
      {R"({"tie_word_embeddings": 1})", "tie_word_embeddings: 1 is not true or false"},
      {R"({"attention_bias": "q"})", "attention_bias"},
      {R"({"attention_dropout": 1.0})", "attention_dropout: 1 is not in [0, 1)"},
      {R"({"attention_dropout": -0.1})", "attention_dropout"},
      {R"({"model_type": null})", "model_type: is missing"},
      {R"({"model_type": 3})", "model_type: 3 is not a string"},
      {R"({"model_type": "llama4"})", "'llama4' is not supported"},
  };
  for (const auto& [changes, message] : refused) {
    const auto got = refusal(with(kLlama, json::parse(changes)));
    EXPECT_CONTAINS(got, message);
    EXPECT_EQ(got.rfind("config.json: ", 0), 0u) << got;
  }
  EXPECT_NO_THROW(from_json(of_type("qwen3", {{"num_attention_heads", 6}, {"head_dim", 8}})));
}

TEST(ModelConfigTest, RefusesGpt2Fields) {
  const Refused refused[] = {
      {R"({"activation_function": "relu"})", "activation_function: 'relu'"},
      {R"({"reorder_and_upcast_attn": true})", "reorder_and_upcast_attn: true"},
      {R"({"add_cross_attention": true})", "add_cross_attention: true"},
      {R"({"n_head": 5})", "n_head: 5 does not divide n_embd 32"},
      {R"({"n_positions": null})", "n_positions: is missing"},
      {R"({"hidden_size": 64})", "n_embd: 32 contradicts hidden_size 64"},
      {R"({"resid_pdrop": 2})", "resid_pdrop: 2"},
      {R"({"architectures": ["GPT2Model"]})", "GPT2LMHeadModel"},
  };
  for (const auto& [changes, message] : refused) {
    EXPECT_CONTAINS(refusal(with(kGpt2, json::parse(changes))), message);
  }
}

TEST(ModelConfigTest, Gpt2Spellings) {
  EXPECT_EQ(from_json(with(kGpt2, {{"activation_function", "gelu"}})).gelu, Gelu::exact);
  EXPECT_EQ(from_json(with(kGpt2, {{"activation_function", "gelu_pytorch_tanh"}})).gelu, Gelu::tanh);
  EXPECT_EQ(from_json(with(without(kGpt2, "n_embd"), {{"hidden_size", 64}})).hidden_size, 64);
  EXPECT_EQ(from_json(with(kGpt2, {{"n_inner", 48}})).intermediate_size, 48);
  EXPECT_FALSE(from_json(with(kGpt2, {{"scale_attn_weights", false}})).scale_attention);
  EXPECT_TRUE(from_json(with(kGpt2, {{"scale_attn_by_inverse_layer_idx", true}})).scale_attention_by_layer);
  EXPECT_EQ(from_json(with(kGpt2, {{"embd_pdrop", 0}})).embedding_dropout, 0.0);
}

TEST(ModelConfigTest, IgnoresUnknownFields) {
  const json odd = {{"task_specific_params", {{"a", 1}}},  {"auto_map", json::array()},      {"_name_or_path", 7},
                    {"eos_token_id", json::array({1, 2})}, {"quantization_config", nullptr}, {"pretraining_tp", 4}};
  EXPECT_EQ(from_json(with(kLlama, odd)).hidden_size, 32);
}

TEST(ModelConfigTest, RefusesBrokenText) {
  const auto parse = [](const std::string& text) { return message_of([&] { parse_model_config(text, "c.json"); }); };
  EXPECT_CONTAINS(parse(""), "c.json: not valid JSON");
  EXPECT_CONTAINS(parse("[]"), "c.json: not a JSON object");
  EXPECT_CONTAINS(parse(R"({"hidden_size": NaN})"), "not valid JSON");
  EXPECT_CONTAINS(parse(R"({"rms_norm_eps": 1e999})"), "c.json: not valid JSON");
  EXPECT_CONTAINS(parse(R"({"hidden_size": 1, "hidden_size": 2})"), "'hidden_size' is given twice");
  EXPECT_CONTAINS(parse(std::string(1000, '[')), "nested deeper");
  EXPECT_CONTAINS(message_of([] { read_model_config("/nonexistent"); }), "cannot open /nonexistent/config.json");
}

bool equal(const ModelConfig& a, const ModelConfig& b) {
  return a.model_type == b.model_type && a.vocab_size == b.vocab_size && a.hidden_size == b.hidden_size &&
         a.intermediate_size == b.intermediate_size && a.num_layers == b.num_layers && a.num_heads == b.num_heads &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim && a.max_positions == b.max_positions &&
         a.sliding_window == b.sliding_window && a.norm_eps == b.norm_eps &&
         a.initializer_range == b.initializer_range && a.tie_word_embeddings == b.tie_word_embeddings &&
         a.qkv_bias == b.qkv_bias && a.out_bias == b.out_bias && a.mlp_bias == b.mlp_bias && a.qk_norm == b.qk_norm &&
         a.scale_attention == b.scale_attention && a.scale_attention_by_layer == b.scale_attention_by_layer &&
         a.gelu == b.gelu && a.embedding_dropout == b.embedding_dropout && a.residual_dropout == b.residual_dropout &&
         a.attention_dropout == b.attention_dropout && a.rope.theta == b.rope.theta && a.rope.type == b.rope.type &&
         a.rope.factor == b.rope.factor && a.rope.low_freq_factor == b.rope.low_freq_factor &&
         a.rope.high_freq_factor == b.rope.high_freq_factor && a.rope.head_dim == b.rope.head_dim &&
         a.rope.original_max_position_embeddings == b.rope.original_max_position_embeddings;
}

TEST(ModelConfigTest, WrittenConfigsReadBackEqual) {
  for (const auto& known : kKnown) {
    auto config = from_file(known.file);
    EXPECT_TRUE(equal(config, parse_model_config(write_model_config(config, "float32"), "again"))) << known.file;
    config.raw_json.clear();  // the fields alone must say it all
    EXPECT_TRUE(equal(config, parse_model_config(write_model_config(config, "float32"), "again"))) << known.file;
  }
  const json on = {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 0}};
  const json linear = {{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}, {"rope_theta", 5e5}};
  const json odd_gpt2 = {{"n_inner", 48},
                         {"activation_function", "gelu"},
                         {"tie_word_embeddings", false},
                         {"scale_attn_weights", false},
                         {"embd_pdrop", 0.25}};
  for (auto config : {from_json(of_type("qwen2", on)), from_json(of_type("mistral", {{"sliding_window", nullptr}})),
                      from_json(with(kLlama, linear)), from_json(with(kGpt2, odd_gpt2)),
                      from_json(with(kLlama, {{"attention_bias", true}, {"mlp_bias", true}}))}) {
    EXPECT_TRUE(equal(config, parse_model_config(write_model_config(config, "float32"), "again")));
    config.raw_json.clear();
    EXPECT_TRUE(equal(config, parse_model_config(write_model_config(config, "float32"), "again"))) << config.model_type;
  }
}

TEST(ModelConfigTest, WritesWhatOldAndNewTransformersRead) {
  const auto root = json::parse(write_model_config(from_file("llama-3.1-8b.v5.json"), "bfloat16"));
  EXPECT_EQ(root["rope_theta"], 500000.0);
  EXPECT_EQ(root["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(root["rope_scaling"]["factor"], 8.0);
  EXPECT_EQ(root["rope_parameters"]["rope_theta"], 500000.0);
  EXPECT_EQ(root["rope_parameters"]["rope_type"], "llama3");
  EXPECT_EQ(root["torch_dtype"], "bfloat16");
  EXPECT_EQ(root["dtype"], "bfloat16");
  EXPECT_EQ(root["bos_token_id"], 128000);  // kept from the file it was read from
  EXPECT_EQ(root["architectures"], json::array({"LlamaForCausalLM"}));

  const auto fresh = json::parse(write_model_config(from_json(kGpt2), "float32"));
  EXPECT_EQ(fresh["architectures"], json::array({"GPT2LMHeadModel"}));
  EXPECT_TRUE(fresh["bos_token_id"].is_null());  // the class's 50256 is outside this vocabulary
  EXPECT_FALSE(fresh.contains("rope_theta"));
  const auto plain = json::parse(write_model_config(from_json(kLlama), "float32"));
  EXPECT_TRUE(plain["rope_scaling"].is_null());
  EXPECT_EQ(plain["rope_parameters"]["rope_type"], "default");
}

TEST(ModelLayoutTest, NamesWhatWouldWork) {
  const auto check = [](const ModelConfig& config, const Degrees& degrees) {
    return message_of([&] { check_model_layout(config, degrees); });
  };
  auto config = from_json(with(kLlama, {{"num_attention_heads", 8}, {"num_key_value_heads", 2}}));
  EXPECT_CONTAINS(check(config, {.tp = 3}), "tp_size 3 does not divide num_attention_heads 8; use 1, 2, 4 or 8");
  EXPECT_CONTAINS(check(config, {.tp = 16}), "use 1, 2, 4 or 8");
  EXPECT_EQ(check(config, {.tp = 8}), "no error");  // more ranks than kv heads
  EXPECT_EQ(check(config, {.pp = 2, .dp_replicate = 7, .sp = 2, .tp = 4}), "no error");
  EXPECT_CONTAINS(check(config, {.pp = 3}), "pp_size 3 is more than num_hidden_layers 2");
  EXPECT_CONTAINS(check(config, {.sp = 4, .tp = 4}), "sp_size 4 does not divide the 2 heads of a tp rank");
  EXPECT_CONTAINS(check(config, {.dp_shard = 2, .ep = 2}), "no experts");
  config.vocab_size = 7;
  EXPECT_CONTAINS(check(config, {.tp = 8}), "tp_size 8 is more than vocab_size 7; use 7 or less");
  const auto qwen = from_file("qwen2.5-0.5b.json");
  EXPECT_EQ(check(qwen, {.tp = 7}), "no error");
  EXPECT_CONTAINS(check(qwen, {.tp = 4}), "use 1, 2, 7 or 14");
}

}  // namespace
}  // namespace tetra
