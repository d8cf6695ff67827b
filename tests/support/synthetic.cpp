#include "tests/support/synthetic.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "kernels/error.h"
#include "mesh/philox.h"

namespace tetra::testing {

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tetra_test_XXXXXX").string();
  require(::mkdtemp(pattern.data()) != nullptr, "cannot make a temporary folder {}", pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_tokens(const std::string& path, const std::vector<int32_t>& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
}

namespace {

std::string model_json(const SmallRun& run) {
  const std::string extra = run.extra.empty() ? "" : ", " + run.extra;
  if (run.model_type == "gpt2") {
    return fmt::format(
        R"({{"model_type": "gpt2", "vocab_size": {}, "n_embd": {}, "n_inner": {}, "n_layer": {}, "n_head": {},
      "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.1{}}})",
        run.vocab_size, run.hidden_size, run.intermediate_size, run.layers, run.heads, extra);
  }
  return fmt::format(R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
    "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "initializer_range": 0.1{}}})",
                     run.model_type, run.vocab_size, run.hidden_size, run.intermediate_size, run.layers, run.heads,
                     run.kv_heads, extra);
}

}  // namespace

Config small_config(const SmallRun& run, const TemporaryFolder& folder) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < run.steps * run.batch * run.seq_len; ++i) {
    const auto draw = static_cast<int32_t>(random_bits({7, "tokens"}, i) % static_cast<uint64_t>(run.vocab_size));
    tokens.push_back(draw);
    labels.push_back(i % 5 == 4 ? -100 : draw);
  }
  write_tokens(folder / "tokens.bin", tokens);
  write_tokens(folder / "labels.bin", labels);

  Config c;
  c.model.config_json = model_json(run);
  c.data.tokens = folder / "tokens.bin";
  c.data.labels = folder / "labels.bin";
  c.data.seq_len = run.seq_len;
  c.train.steps = run.steps;
  c.train.global_batch_size = run.batch;
  c.train.micro_batch_size = run.batch;
  c.train.precision = run.precision;
  c.train.optimizer.lr = 3e-3;
  return c;
}

}  // namespace tetra::testing
