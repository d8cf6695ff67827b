#include "train/checkpoint/hugging_face.h"

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/hugging_face_folder.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/safetensors_format.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoint/saver.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using TypeAndShape = std::pair<at::ScalarType, std::vector<int64_t>>;

ModelConfig config_of(const CheckpointReader& reader) {
  const std::string origin = reader.folder() + "/" + kPlanFile;
  const auto state = ordered_json::parse(reader.state_json());
  require(state.contains(kModelConfigField), "{}: its state has no '{}'", origin, kModelConfigField);
  return parse_model_config(state[kModelConfigField].dump(), fmt::format("{}: {}", origin, kModelConfigField));
}

/// What is to be written, by Hugging Face's names.
DeclaredTensors declare(const CheckpointReader& reader, const ModelConfig& config,
                        std::optional<at::ScalarType> dtype) {
  const std::string prefix = kWeightsPrefix;
  DeclaredTensors tensors;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.starts_with(prefix) && !parameter_name(name.substr(prefix.size()), config).empty()) {
      tensors.push_back({name.substr(prefix.size()), {dtype.value_or(tensor.dtype), tensor.shape}});
    }
  }
  require(!tensors.empty(), "{} holds no weights: no tensor's name starts with '{}'", reader.folder(), prefix);
  return tensors;
}

}  // namespace

void export_checkpoint(const std::string& checkpoint, const std::string& folder, std::optional<at::ScalarType> dtype,
                       int64_t max_shard_bytes) {
  const auto reader = CheckpointReader::open(checkpoint);
  const auto fault = reader.verify(0, 1);
  require(!fault, "{}", fault.value_or(""));
  const ModelConfig config = config_of(reader);
  const DeclaredTensors tensors = declare(reader, config, dtype);
  const std::string config_json = write_model_config(config, config_dtype(tensors[0].second.first));
  make_folders(folder);
  HuggingFaceFolder files(folder, tensors, max_shard_bytes, config_json);
  for (const auto& [name, declared] : tensors) {
    const auto& [type, shape] = declared;
    const at::Tensor whole = at::empty(shape, at::TensorOptions().dtype(type));
    reader.read_converted({{kWeightsPrefix + name, shape, std::vector<int64_t>(shape.size(), 0), whole}});
    files.write(name, whole);
  }
  files.finish();
}

namespace {

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
