#pragma once
// What a Hugging Face folder of weights looks like: the names in it, and writing one so that it appears whole.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/model_config.h"

namespace tetra {

/// config.json's name of a type that weights can be stored in: "float32". Throws Error for others.
const char* config_dtype(at::ScalarType type);

/// The parameter's name for a stored tensor's; empty for what is no parameter: buffers that old files carry, and the
/// second name of a tied weight. GPT-2's first files lack the prefix that the model class adds.
std::string parameter_name(const std::string& stored, const ModelConfig& config);

using DeclaredTensors = std::vector<std::pair<std::string, std::pair<at::ScalarType, std::vector<int64_t>>>>;

/// config.json, model.safetensors or shards of at most `max_shard_bytes` with an index. All files are written under
/// temporary names, with their room on the disk, until finish(): an export that fails leaves an earlier one as it was,
/// for shards of the two must not stand side by side.
class HuggingFaceFolder {
 public:
  HuggingFaceFolder(const std::string& folder, const DeclaredTensors& tensors, int64_t max_shard_bytes,
                    const std::string& config_json);
  ~HuggingFaceFolder();

  /// Each declared tensor once, in any order: contiguous, on the CPU, of the declared type and shape.
  void write(const std::string& name, const at::Tensor& tensor);
  void finish();

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace tetra
