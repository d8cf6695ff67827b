#include "train/checkpoint/hugging_face.h"

#include <deque>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/safetensors_format.h"
#include "models/safetensors_output.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoint/saver.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using TypeAndShape = std::pair<at::ScalarType, std::vector<int64_t>>;
using Declared = std::vector<std::pair<std::string, TypeAndShape>>;

const char* config_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      fail("weights of type {} cannot be exported; use fp32, bf16 or fp16", c10::toString(dtype));
  }
}

ModelConfig config_of(const CheckpointReader& reader) {
  const std::string origin = reader.folder() + "/" + kPlanFile;
  const auto state = ordered_json::parse(reader.state_json());
  require(state.contains(kModelConfigField), "{}: its state has no '{}'", origin, kModelConfigField);
  return parse_model_config(state[kModelConfigField].dump(), fmt::format("{}: {}", origin, kModelConfigField));
}

bool is_tied_head(const std::string& name, const ModelConfig& config) {
  return config.tie_word_embeddings && name == "lm_head.weight";
}

/// What is to be written, by Hugging Face's names.
Declared declare(const CheckpointReader& reader, const ModelConfig& config, std::optional<at::ScalarType> dtype) {
  const std::string prefix = kWeightsPrefix;
  Declared tensors;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.starts_with(prefix) && !is_tied_head(name.substr(prefix.size()), config)) {
      tensors.push_back({name.substr(prefix.size()), {dtype.value_or(tensor.dtype), tensor.shape}});
    }
  }
  require(!tensors.empty(), "{} holds no weights: no tensor's name starts with '{}'", reader.folder(), prefix);
  return tensors;
}

/// All files under temporary names, with their room on the disk, until all are whole.
class ExportFiles {
 public:
  ExportFiles(fs::path folder, const Declared& tensors, int64_t max_shard_bytes, const std::string& config)
      : folder_(std::move(folder)),
        plan_(plan_shards(tensors, max_shard_bytes)),
        config_(folder_ / "config.json", config.size()) {
    const std::map<std::string, TypeAndShape> types(tensors.begin(), tensors.end());
    for (const auto& [file, names] : plan_.files) {
      std::map<std::string, TypeAndShape> declared;
      for (const std::string& name : names) {
        declared.emplace(name, types.at(name));
      }
      SafetensorsWriter& writer = writers_.emplace_back(folder_ / file, std::move(declared));
      for (const std::string& name : names) {
        writer_of_[name] = &writer;
      }
    }
    config_.write_at(0, config.data(), config.size());
  }

  void write(const std::string& name, const at::Tensor& tensor) { writer_of_.at(name)->write(name, tensor); }

  void finish() {
    for (SafetensorsWriter& writer : writers_) {
      writer.finish();
    }
    remove_stale_weight_files(folder_, plan_);
    if (!plan_.index_json.empty()) {
      write_file_atomically(folder_ / kWeightIndexFile, plan_.index_json);
    }
    config_.commit();
  }

 private:
  const fs::path folder_;
  const ShardPlan plan_;
  AtomicFile config_;
  std::deque<SafetensorsWriter> writers_;
  std::map<std::string, SafetensorsWriter*> writer_of_;
};

}  // namespace

void export_checkpoint(const std::string& checkpoint, const std::string& folder, std::optional<at::ScalarType> dtype,
                       int64_t max_shard_bytes) {
  const auto reader = CheckpointReader::open(checkpoint);
  const auto fault = reader.verify(0, 1);
  require(!fault, "{}", fault.value_or(""));
  const ModelConfig config = config_of(reader);
  const Declared tensors = declare(reader, config, dtype);
  const std::string config_json = write_model_config(config, config_dtype(tensors[0].second.first));
  make_folders(folder);
  ExportFiles files(folder, tensors, max_shard_bytes, config_json);
  for (const auto& [name, declared] : tensors) {
    const auto& [type, shape] = declared;
    const at::Tensor whole = at::empty(shape, at::TensorOptions().dtype(type));
    reader.read_converted({{kWeightsPrefix + name, shape, std::vector<int64_t>(shape.size(), 0), whole}});
    files.write(name, whole);
  }
  files.finish();
}

namespace {

/// The parameter's name for a stored tensor's; empty for what is no parameter: buffers that old files carry, and the
/// second name of a tied weight. GPT-2's first files lack the prefix that the model class adds.
std::string parameter_name(const std::string& stored, const ModelConfig& config) {
  const bool gpt2 = config.model_type == "gpt2";
  if (is_tied_head(stored, config) || stored.ends_with(".rotary_emb.inv_freq") ||
      stored.ends_with(".attn.masked_bias") || (gpt2 && stored.ends_with(".attn.bias"))) {
    return "";
  }
  return gpt2 && !stored.starts_with("transformer.") && stored != "lm_head.weight" ? "transformer." + stored : stored;
}

struct Import {
  std::string stored_name;
  TypeAndShape declared;
};

/// By the names in the checkpoint.
std::map<std::string, Import> imports(const WeightReader& weights, const ModelConfig& config,
                                      const std::string& folder) {
  std::map<std::string, Import> result;
  int64_t elements = 0;
  for (const auto& [stored, info] : weights.tensors()) {
    const std::string name = parameter_name(stored, config);
    if (name.empty()) {
      continue;
    }
    const at::ScalarType type = info.dtype == at::kDouble ? at::kDouble : at::kFloat;
    const bool added = result.emplace(kWeightsPrefix + name, Import{stored, {type, info.shape}}).second;
    require(added, "{}: tensor '{}' is there twice", info.file, stored);
    elements += Box{{}, info.shape}.numel();
  }
  require(elements == parameter_count(config), "{}: its weights are {} numbers, but config.json describes {}", folder,
          elements, parameter_count(config));
  return result;
}

constexpr const char* kImportFile = "rank-00000.safetensors";

/// Writes the file and returns what the plan says of it.
CheckpointPlan write_import(const SaveFolder& target, const WeightReader& weights,
                            const std::map<std::string, Import>& tensors) {
  CheckpointPlan plan;
  plan.world_size = 1;
  TensorShapes shapes;
  for (const auto& [name, import] : tensors) {
    const auto& shape = import.declared.second;
    const Box box = {std::vector<int64_t>(shape.size(), 0), shape};
    shapes[chunk_key(name, box)] = import.declared;
    plan.tensors[name] = {import.declared.first, shape, {{kImportFile, 0, box}}};
  }
  const std::string path = target.path(kImportFile);
  const SafetensorsLayout layout = layout_safetensors(shapes, path);
  SafetensorsWriter writer(path, shapes);
  for (auto& [name, tensor] : plan.tensors) {
    PlannedChunk& chunk = tensor.chunks[0];
    const std::string key = chunk_key(name, chunk.box);
    chunk.begin = layout.header.size() + layout.tensors.at(key).begin;
    writer.write(key, weights.read(tensors.at(name).stored_name, Slice::whole(tensor.shape), tensor.dtype));
  }
  writer.finish();
  plan.files[kImportFile] = sum_file(path);
  return plan;
}

}  // namespace

std::string import_hugging_face(const std::string& folder, const std::string& dir) {
  const ModelConfig config = read_model_config(folder);
  const auto weights = WeightReader::open(folder);
  const auto tensors = imports(weights, config, folder);
  const char* dtype = config_dtype(tensors.begin()->second.declared.first);
  SaveFolder target(dir, 0, make_save_id());
  remove_leftovers(dir, target);
  try {
    CheckpointPlan plan = write_import(target, weights, tensors);
    const ordered_json state = {{"step", 0},
                                {kModelConfigField, ordered_json::parse(write_model_config(config, dtype))}};
    plan.state_json = state.dump();
    write_file_atomically(target.path(kPlanFile), plan_text(plan));
    target.commit();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(target.path(), ignored);
    throw;
  }
  return dir + "/" + checkpoint_name(0);
}

FoundCheckpoint find_checkpoint(const std::string& path) {
  if (status_of(path + "/" + kPlanFile)) {
    return {path, ""};
  }
  require(status_of(path).has_value(), "{}: no such folder", path);
  FoundCheckpoint found;
  for (const std::string& candidate : list_checkpoints(path)) {
    std::string fault;
    try {
      fault = CheckpointReader::open(candidate).verify(0, 1).value_or("");
    } catch (const Error& error) {
      fault = error.what();
    }
    if (fault.empty()) {
      found.path = candidate;
      return found;
    }
    found.skipped += (found.skipped.empty() ? "" : "; ") + fault;
  }
  fail("{} is no checkpoint and holds none{}{}", path, found.skipped.empty() ? "" : " that is whole: ", found.skipped);
}

}  // namespace tetra
