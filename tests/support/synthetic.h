#pragma once
// Small runs made from nothing: random models and token files in a folder of their own.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/config.h"

namespace tetra::testing {

/// A folder that is removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);
void write_tokens(const std::string& path, const std::vector<int32_t>& values);

/// Shape of a small run.
struct SmallRun {
  std::string model_type = "llama";
  std::string extra = {};  // more fields of config.json: R"("attention_bias": true)"
  int64_t vocab_size = 96, hidden_size = 32, intermediate_size = 48, layers = 2, heads = 4, kv_heads = 2;
  int64_t batch = 4, seq_len = 12, steps = 3;
  std::string precision = "fp64";
};

/// A configuration that trains it on random tokens, written to `folder`. Every fifth label is ignored.
Config small_config(const SmallRun& run, const TemporaryFolder& folder);

}  // namespace tetra::testing
