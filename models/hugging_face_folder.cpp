#include "models/hugging_face_folder.h"

#include <deque>
#include <filesystem>
#include <map>

#include "kernels/error.h"
#include "models/safetensors.h"
#include "models/safetensors_output.h"

namespace tetra {

const char* config_dtype(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      fail("weights of type {} cannot be exported; use fp32, bf16 or fp16", c10::toString(type));
  }
}

std::string parameter_name(const std::string& stored, const ModelConfig& config) {
  const bool gpt2 = config.model_type == "gpt2";
  const bool tied_head = config.tie_word_embeddings && stored == "lm_head.weight";
  if (tied_head || stored.ends_with(".rotary_emb.inv_freq") || stored.ends_with(".attn.masked_bias") ||
      (gpt2 && stored.ends_with(".attn.bias"))) {
    return "";
  }
  return gpt2 && !stored.starts_with("transformer.") && stored != "lm_head.weight" ? "transformer." + stored : stored;
}

struct HuggingFaceFolder::Files {
  Files(std::filesystem::path where, const DeclaredTensors& tensors, int64_t max_shard_bytes,
        const std::string& config_json)
      : folder(std::move(where)),
        plan(plan_shards(tensors, max_shard_bytes)),
        config(folder / "config.json", config_json.size()) {
    const std::map<std::string, std::pair<at::ScalarType, std::vector<int64_t>>> types(tensors.begin(), tensors.end());
    for (const auto& [file, names] : plan.files) {
      std::map<std::string, std::pair<at::ScalarType, std::vector<int64_t>>> declared;
      for (const std::string& name : names) {
        declared.emplace(name, types.at(name));
      }
      SafetensorsWriter& writer = writers.emplace_back(folder / file, std::move(declared));
      for (const std::string& name : names) {
        writer_of[name] = &writer;
      }
    }
    config.write_at(0, config_json.data(), config_json.size());
  }

  std::filesystem::path folder;
  ShardPlan plan;
  AtomicFile config;
  std::deque<SafetensorsWriter> writers;
  std::map<std::string, SafetensorsWriter*> writer_of;
};

HuggingFaceFolder::HuggingFaceFolder(const std::string& folder, const DeclaredTensors& tensors, int64_t max_shard_bytes,
                                     const std::string& config_json)
    : files_(std::make_unique<Files>(folder, tensors, max_shard_bytes, config_json)) {}

HuggingFaceFolder::~HuggingFaceFolder() = default;

void HuggingFaceFolder::write(const std::string& name, const at::Tensor& tensor) {
  files_->writer_of.at(name)->write(name, tensor);
}

void HuggingFaceFolder::finish() {
  for (SafetensorsWriter& writer : files_->writers) {
    writer.finish();
  }
  // What an earlier export left would be read in these files' place; it goes when they are all there.
  remove_stale_weight_files(files_->folder, files_->plan);
  if (!files_->plan.index_json.empty()) {
    write_file_atomically(files_->folder / kWeightIndexFile, files_->plan.index_json);
  }
  files_->config.commit();
}

}  // namespace tetra
