// Hugging Face folders become checkpoints and come back, bit for bit.
#include "train/checkpoint/hugging_face.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <ATen/ops/ones.h>

#include "kernels/error.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "tests/checkpoint/parts.h"
#include "tests/support/synthetic.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoint/saver.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::read_text;
using testing::TemporaryFolder;
using testing::write_text;

constexpr int64_t kOneShard = int64_t{5} << 30;

std::string reference(const std::string& name) {
  return std::string(TETRA_TEST_DATA) + "/reference/" + name;
}

void expect_same_weights(const std::string& folder, const std::string& other) {
  const auto a = WeightReader::open(folder);
  const auto b = WeightReader::open(other);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, info] : a.tensors()) {
    ASSERT_TRUE(b.contains(name)) << name;
    ASSERT_EQ(b.tensors().at(name).dtype, info.dtype) << name;
    const Slice whole = Slice::whole(info.shape);
    const at::Tensor x = a.read(name, whole, info.dtype);
    const at::Tensor y = b.read(name, whole, info.dtype);
    EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << name;
  }
}

TEST(HuggingFace, ThereAndBack) {
  for (const std::string name : {"llama", "llama_f64", "gpt2", "llama_odd_vocab"}) {
    const TemporaryFolder dir;
    const std::string checkpoint = import_hugging_face(reference(name), dir.path());
    EXPECT_EQ(checkpoint, dir / "step-00000000");
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
    for (const int64_t shard : {kOneShard, int64_t{20000}}) {
      export_checkpoint(checkpoint, dir / "hf", std::nullopt, shard);
      EXPECT_EQ(fs::exists(dir / "hf/model.safetensors"), shard == kOneShard);
      EXPECT_EQ(fs::exists(dir / "hf/model.safetensors.index.json"), shard != kOneShard);
      expect_same_weights(reference(name), dir / "hf");
    }
    const ModelConfig before = read_model_config(reference(name));
    const ModelConfig after = read_model_config(dir / "hf");
    EXPECT_EQ(write_model_config(before, "x"), write_model_config(after, "x"));
  }
}

TEST(HuggingFace, TypesConvert) {
  const TemporaryFolder dir;
  const std::string checkpoint = import_hugging_face(reference("llama"), dir.path());
  const auto stored = CheckpointReader::open(checkpoint);
  for (const auto& [type, name] : std::vector<std::pair<at::ScalarType, std::string>>{
           {at::kBFloat16, "bfloat16"}, {at::kHalf, "float16"}, {at::kFloat, "float32"}}) {
    export_checkpoint(checkpoint, dir / name, type, kOneShard);
    EXPECT_NE(read_text(dir / (name + "/config.json")).find("\"dtype\": \"" + name + "\""), std::string::npos);
    const auto weights = WeightReader::open(dir / name);
    for (const auto& [weight, info] : weights.tensors()) {
      EXPECT_EQ(info.dtype, type);
      const at::Tensor expected = stored.read_whole("weights/" + weight).to(type);
      EXPECT_TRUE(weights.read(weight, Slice::whole(info.shape), type).equal(expected)) << weight;
    }
  }
}

// A checkpoint may hold more than weights, and a tied head under both names.
TEST(HuggingFace, WeightsAloneAndATiedHeadOnce) {
  const TemporaryFolder dir;
  CheckpointSaver saver({.dir = dir.path()});
  const std::string config = R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
      "num_hidden_layers": 1, "num_attention_heads": 1, "tie_word_embeddings": true, "special": "kept"})";
  const auto state = [&](const std::string& model) { return R"({"model_config": )" + model + "}"; };
  const testing::Tensors tensors = {{"weights/model.embed_tokens.weight", at::ones({8, 4})},
                                    {"weights/lm_head.weight", at::ones({8, 4})},
                                    {"exp_avg/model.embed_tokens.weight", at::ones({8, 4})}};
  saver.save(3, make_save_id(), {.parts = testing::whole_parts(tensors), .state_json = state(config)});
  saver.wait();
  export_checkpoint(dir / "step-00000003", dir / "hf", std::nullopt, kOneShard);
  EXPECT_EQ(WeightReader::open(dir / "hf").tensors().size(), 1u);
  EXPECT_NE(read_text(dir / "hf/config.json").find("\"special\": \"kept\""), std::string::npos);
  saver.save(4, make_save_id(), {.parts = testing::whole_parts(tensors)});
  saver.wait();
  EXPECT_EQ(error_of([&] { export_checkpoint(dir / "step-00000004", dir / "hf", std::nullopt, kOneShard); }),
            dir / "step-00000004/plan.json: its state has no 'model_config'");
  saver.save(5, make_save_id(), {.state_json = state(config)});
  saver.wait();
  EXPECT_NE(error_of([&] {
              export_checkpoint(dir / "step-00000005", dir / "hf", std::nullopt, kOneShard);
            }).find("holds no weights"),
            std::string::npos);
}

TEST(HuggingFace, WeightsThatAreNotTheModelsAreRefused) {
  const TemporaryFolder dir;
  fs::copy(reference("llama"), dir / "hf");
  std::string config = read_text(dir / "hf/config.json");
  const std::string field = "\"num_hidden_layers\": ";
  config.replace(config.find(field), field.size() + 1, field + "9");
  write_text(dir / "hf/config.json", config);
  EXPECT_NE(error_of([&] { import_hugging_face(dir / "hf", dir / "out"); }).find("but config.json describes"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(HuggingFace, FindsTheNewestWholeCheckpoint) {
  const TemporaryFolder dir;
  CheckpointSaver saver({.dir = dir.path(), .keep = 0});
  for (const int64_t step : {9, 10}) {
    saver.save(step, make_save_id(), {.parts = {{"x", {4}, {0}, at::ones({4})}}});
  }
  saver.wait();
  EXPECT_EQ(find_checkpoint(dir / "step-00000009").path, dir / "step-00000009");
  EXPECT_EQ(find_checkpoint(dir.path()).path, dir / "step-00000010");
  write_text(dir / "step-00000010/rank-00000.safetensors", "short");
  const FoundCheckpoint found = find_checkpoint(dir.path());
  EXPECT_EQ(found.path, dir / "step-00000009");
  EXPECT_EQ(found.skipped.find(dir / "step-00000010/rank-00000.safetensors: truncated"), 0u) << found.skipped;
  write_text(dir / "step-00000009/plan.json", "");
  EXPECT_NE(error_of([&] { find_checkpoint(dir.path()); }).find("step-00000009/plan.json: "), std::string::npos);
  EXPECT_EQ(error_of([&] { find_checkpoint(dir / "none"); }), dir / "none: no such folder");
}

}  // namespace
}  // namespace tetra
