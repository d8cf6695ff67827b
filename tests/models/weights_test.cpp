// Weights between parameters and Hugging Face folders: the same bytes on every layout, and nothing read or kept that
// does not belong.

#include "models/weights.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "mesh/fabric.h"
#include "mesh/world.h"
#include "tests/support/synthetic.h"

namespace tetra::testing {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kManyShards = 8000;  // bytes

struct Ranks {
  int64_t tp = 1, dp = 1, shard = 1;
};

struct Family {
  const char* name;
  SmallRun run;
};
std::ostream& operator<<(std::ostream& out, const Family& family) {
  return out << family.name;
}

const std::vector<Family> kFamilies = {
    {"llama", {.extra = R"("attention_bias": true, "mlp_bias": true)", .vocab_size = 97, .intermediate_size = 50}},
    {"llama_tied", {.extra = R"("tie_word_embeddings": true, "head_dim": 6)"}},
    {"mistral", {.model_type = "mistral"}},
    {"qwen3", {.model_type = "qwen3", .kv_heads = 1}},
    {"gpt2", {.model_type = "gpt2", .vocab_size = 97, .intermediate_size = 50}},
    {"gpt2_untied", {.model_type = "gpt2", .extra = R"("tie_word_embeddings": false)"}},
};

using Body = std::function<void(CausalLM&, ModelState&, World&)>;

/// Builds the model on thread ranks and hands it to `body`.
void on_ranks(const Ranks& ranks, const ModelConfig& config, const char* precision, const Body& body) {
  WorldOptions options;
  options.degrees.tp = ranks.tp;
  options.degrees.dp_replicate = ranks.dp;
  options.degrees.dp_shard = ranks.shard;
  run_local_ranks(static_cast<int>(options.degrees.world_size()), options, [&](World& world) {
    const TensorParallel tp{world.group(Axis::tp), false};
    const auto model = make_causal_lm(config, parse_precision(precision), tp);
    ModelState state(model->parameters(), shard_groups(world, 3), {.zero_stage = 3});
    body(*model, state, world);
  });
}

void export_drawn(const ModelConfig& config, const std::string& folder, const Ranks& ranks = {},
                  const char* precision = "fp64", int64_t max_shard_bytes = int64_t{1} << 30, uint64_t seed = 5) {
  on_ranks(ranks, config, precision, [&](CausalLM& model, ModelState& state, World& world) {
    draw_weights(state, seed);
    export_model(model, state, world, folder, max_shard_bytes);
  });
}

/// Every rank's part of what is in `folder` is the part of the drawn weights that it holds, bit for bit.
void expect_drawn(const ModelConfig& config, const std::string& folder, const Ranks& ranks = {},
                  const char* precision = "fp64", uint64_t seed = 5) {
  on_ranks(ranks, config, precision, [&](CausalLM& model, ModelState& state, World&) {
    load_weights(model, state, WeightReader::open(folder));
    const Precision types = model.parameters().precision();
    for (size_t unit = 0; unit < state.units().size(); ++unit) {
      state.gather(unit);
      const UnitState& held = state.units()[unit];
      for (const Segment& segment : held.segments) {
        const auto drawn = draw_initial(*segment.parameter, segment.flat, seed, types.master).to(types.compute);
        const auto master = held.master_shard.narrow(0, segment.offset, segment.size());
        EXPECT_TRUE(at::equal(master, drawn.to(types.master))) << segment.parameter->name;
      }
      for (const Parameter* parameter : held.unit.parameters) {
        const auto drawn = draw_initial(*parameter, {0, parameter->slice.local_numel()}, seed, types.master);
        EXPECT_EQ(parameter->value.scalar_type(), types.compute);
        EXPECT_TRUE(at::equal(parameter->value.flatten(), drawn.to(types.compute))) << parameter->name;
      }
    }
  });
}

/// The message with which loading `folder` fails, "" when it does not.
std::string load_failure(const ModelConfig& config, const std::string& folder) {
  try {
    on_ranks({}, config, "fp32", [&](CausalLM& model, ModelState& state, World&) {
      load_weights(model, state, WeightReader::open(folder));
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
  }
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors read_all(const std::string& folder) {
  const WeightReader reader = WeightReader::open(folder);
  Tensors tensors;
  for (const auto& [name, info] : reader.tensors()) {
    tensors[name] = reader.read(name, Slice::whole(info.shape), info.dtype);
  }
  return tensors;
}

void write_all(const std::string& folder, const Tensors& tensors) {
  fs::create_directories(folder);
  std::map<std::string, std::pair<at::ScalarType, std::vector<int64_t>>> declared;
  for (const auto& [name, tensor] : tensors) {
    declared[name] = {tensor.scalar_type(), tensor.sizes().vec()};
  }
  SafetensorsWriter writer(folder + "/model.safetensors", declared);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.finish();
}

std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& item : fs::directory_iterator(folder)) {
    files[item.path().filename()] = item.is_regular_file() ? read_text(item.path()) : "(folder)";
  }
  return files;
}

class Weights : public ::testing::Test {
 protected:
  ModelConfig config(const SmallRun& run) const {
    return parse_model_config(small_config(run, folder_).model.config_json, "config");
  }
  TemporaryFolder folder_;
};

class WeightsOf : public Weights, public ::testing::WithParamInterface<Family> {};
INSTANTIATE_TEST_SUITE_P(Families, WeightsOf, ::testing::ValuesIn(kFamilies),
                         [](const auto& info) { return info.param.name; });

TEST_P(WeightsOf, ExportsTheSameBytesOnEveryLayout) {
  const ModelConfig model = config(GetParam().run);
  export_drawn(model, folder_ / "one");
  const auto expected = contents(folder_ / "one");
  ASSERT_TRUE(expected.contains("model.safetensors") && expected.contains("config.json"));
  for (const int64_t tp : {1, 2, 4}) {
    const std::string out = folder_ / ("tp" + std::to_string(tp));
    export_drawn(model, out, {tp, 2});
    EXPECT_TRUE(contents(out) == expected) << "tp " << tp << " x dp 2";
    export_drawn(model, out + "_sharded", {tp, 1, 3});
    EXPECT_TRUE(contents(out + "_sharded") == expected) << "tp " << tp << " x dp_shard 3";
  }
}

TEST_P(WeightsOf, ReadsBackWhatItWroteBitForBit) {
  const ModelConfig model = config(GetParam().run);
  for (const char* precision : {"fp64", "fp32", "bf16"}) {
    const std::string out = folder_ / precision;
    export_drawn(model, out, {}, precision);
    expect_drawn(read_model_config(out), out, {}, precision);
    expect_drawn(read_model_config(out), out, {4, 1}, precision);
    expect_drawn(read_model_config(out), out, {2, 1, 3}, precision);
  }
}

TEST_P(WeightsOf, ReadsAFolderOfShards) {
  const ModelConfig model = config(GetParam().run);
  export_drawn(model, folder_ / "shards", {2, 1}, "fp64", kManyShards);
  EXPECT_FALSE(fs::exists(folder_ / "shards/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "shards/model.safetensors.index.json"));
  expect_drawn(model, folder_ / "shards");
  expect_drawn(model, folder_ / "shards", {2, 2});
}

// Two heads a rank, and kv heads that 3.5 ranks share: rank 3 needs both.
TEST_F(Weights, Qwen2OnSevenRanks) {
  const ModelConfig model = config({.model_type = "qwen2", .hidden_size = 56, .heads = 14, .kv_heads = 2});
  export_drawn(model, folder_ / "one");
  export_drawn(model, folder_ / "seven", {7, 1});
  EXPECT_TRUE(contents(folder_ / "one") == contents(folder_ / "seven"));
  expect_drawn(model, folder_ / "one", {7, 1});
}

TEST_F(Weights, TiedModelsHaveOneTensor) {
  export_drawn(config({.extra = R"("tie_word_embeddings": true)"}), folder_ / "tied");
  export_drawn(config({}), folder_ / "untied");
  EXPECT_FALSE(read_all(folder_ / "tied").contains("lm_head.weight"));
  EXPECT_TRUE(read_all(folder_ / "untied").contains("lm_head.weight"));
}

// As in GPT-2's first files: no prefix, and the causal mask stored as a buffer.
TEST_F(Weights, Gpt2WithoutThePrefix) {
  const ModelConfig model = config({.model_type = "gpt2"});
  export_drawn(model, folder_ / "new");
  Tensors old;
  for (const auto& [name, tensor] : read_all(folder_ / "new")) {
    ASSERT_TRUE(name.starts_with("transformer.")) << name;
    old[name.substr(12)] = tensor;
  }
  old["h.0.attn.bias"] = at::ones({1, 1, 64, 64});
  old["h.0.attn.masked_bias"] = at::ones({});
  write_all(folder_ / "old", old);
  expect_drawn(model, folder_ / "old", {2, 1});
}

TEST_F(Weights, KnownBuffersAreIgnored) {
  const ModelConfig model = config({.extra = R"("tie_word_embeddings": true)"});
  export_drawn(model, folder_ / "new");
  Tensors tensors = read_all(folder_ / "new");
  tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = at::ones({4});
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  write_all(folder_ / "old", tensors);
  expect_drawn(model, folder_ / "old");
}

TEST_F(Weights, TensorsThatDoNotFitAreRefused) {
  const ModelConfig model = config({});
  export_drawn(model, folder_ / "good");
  const Tensors good = read_all(folder_ / "good");
  const auto failure_with = [&](const std::string& name, const at::Tensor& tensor) {
    Tensors bad = good;
    bad.erase(name);
    if (tensor.defined()) {
      bad[name] = tensor;
    }
    write_all(folder_ / "bad", bad);
    return load_failure(model, folder_ / "bad");
  };
  // A third layer, and a bias that this model does not have: ignoring them would be another model.
  for (const char* name : {"model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"}) {
    expect_words(failure_with(name, at::ones({32})), {"model.safetensors", name, "no place", "llama"});
  }
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  expect_words(failure_with(up, {}), {up, "missing"});
  expect_words(failure_with(up, at::ones({48, 31})), {"model.safetensors", up, "[48, 31]", "[48, 32]"});
  expect_words(failure_with(up, at::ones({32, 48})), {up, "[32, 48]", "[48, 32]"});
  // An untied head that the file lacks is not made from the embedding in silence.
  expect_words(failure_with("lm_head.weight", {}), {"lm_head.weight"});
  EXPECT_EQ(load_failure(model, folder_ / "good"), "");
}

// A reader takes a single file before an index, and would mix shards of two exports.
TEST_F(Weights, AnEarlierExportDoesNotSurvive) {
  const ModelConfig model = config({});
  const std::string out = folder_ / "out";
  uint64_t seed = 0;
  for (const int64_t shard_bytes : {int64_t{1} << 30, kManyShards, 3 * kManyShards, kManyShards, int64_t{1} << 30}) {
    export_drawn(model, out, {}, "fp64", shard_bytes, ++seed);
    expect_drawn(model, out, {}, "fp64", seed);
    const std::string fresh = folder_ / ("fresh" + std::to_string(seed));
    export_drawn(model, fresh, {}, "fp64", shard_bytes, seed);
    EXPECT_TRUE(contents(out) == contents(fresh)) << "export " << seed;
  }
}

/// Files cannot grow beyond `bytes` while it lives, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(uint64_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit small = {bytes, limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit limit_ = {};
  void (*handler_)(int);
};

std::string export_failure(const ModelConfig& config, const std::string& folder, int64_t shard_bytes, uint64_t seed) {
  try {
    export_drawn(config, folder, {2, 1}, "fp64", shard_bytes, seed);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_F(Weights, AFullDiskLeavesTheEarlierExport) {
  const ModelConfig model = config({.vocab_size = 40});
  for (const int64_t shard_bytes : {int64_t{1} << 30, 3 * kManyShards}) {
    const std::string out = folder_ / std::to_string(shard_bytes);
    export_drawn(model, out, {}, "fp64", shard_bytes);
    const auto before = contents(out);
    std::string largest = "config.json";
    for (const auto& [name, text] : before) {
      largest = text.size() > before.at(largest).size() ? name : largest;
    }
    ASSERT_FALSE(largest.starts_with("model-00001-of-")) << "there must be room for the first shard";
    std::string message;
    {
      const FullDisk full(before.at(largest).size() - 1);
      message = export_failure(model, out, shard_bytes, 6);
    }
    expect_words(message, {"cannot write", largest, "File too large"});
    EXPECT_TRUE(contents(out) == before);
    expect_drawn(model, out);
  }
}

TEST_F(Weights, AFileInTheFoldersPlaceIsKept) {
  write_text(folder_ / "file", "kept");
  expect_words(export_failure(config({}), folder_ / "file", 1 << 30, 6), {"file"});
  EXPECT_EQ(read_text(folder_ / "file"), "kept");
}

TEST_F(Weights, AFolderThatCannotBeWrittenLeavesTheEarlierExport) {
  const ModelConfig model = config({});
  const std::string out = folder_ / "out";
  export_drawn(model, out);
  const auto before = contents(out);
  fs::permissions(out, fs::perms(0555));
  fs::permissions(folder_.path(), fs::perms(0755));
  const bool root = ::geteuid() == 0;  // may write everywhere, but can be somebody else for a while
  ASSERT_EQ(root ? ::seteuid(65534) : 0, 0);
  const std::string message = export_failure(model, out, 1 << 30, 6);
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  fs::permissions(out, fs::perms::owner_all);
  expect_words(message, {"out/", "Permission denied"});
  EXPECT_TRUE(contents(out) == before);
}

}  // namespace
}  // namespace tetra::testing
