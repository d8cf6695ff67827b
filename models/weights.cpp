#include "models/weights.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "kernels/error.h"
#include "mesh/world.h"
#include "models/safetensors_output.h"
#include "parallel/tensor/gather.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;

// GPT-2's first files lack the prefix that the model class adds.
std::string stored_name(const WeightReader& reader, const std::string& name) {
  const std::string prefix = "transformer.";
  if (!reader.contains(name) && name.starts_with(prefix)) {
    return name.substr(prefix.size());
  }
  return name;
}

// Buffers that old files carry, and the second name of a tied weight.
bool is_known_extra(const std::string& name, const ModelConfig& config) {
  const auto ends_with = [&](const char* end) { return name.ends_with(end); };
  return ends_with(".rotary_emb.inv_freq") || ends_with(".attn.masked_bias") ||
         (config.model_type == "gpt2" && ends_with(".attn.bias")) ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return "float32";
  }
}

using TypeAndShape = std::pair<at::ScalarType, std::vector<int64_t>>;
using Declared = std::vector<std::pair<std::string, TypeAndShape>>;

Declared declare(const CausalLM& model) {
  Declared tensors;
  for (const Parameter& parameter : model.parameters().all()) {
    tensors.push_back({parameter.name, {parameter.value.scalar_type(), parameter.cut.global_shape()}});
  }
  return tensors;
}

// All files of an export under temporary names, with their room on the disk, so that one that fails leaves an earlier
// export as it was: shards of the two must not stand side by side.
class ExportFiles {
 public:
  ExportFiles(fs::path folder, const Declared& tensors, const ShardPlan& plan, const std::string& config)
      : folder_(std::move(folder)), plan_(plan), config_(folder_ / "config.json", config.size()) {
    const std::map<std::string, TypeAndShape> types(tensors.begin(), tensors.end());
    for (const auto& [file, names] : plan.files) {
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
    // What an earlier export left would be read in these files' place; it goes when they are all there.
    remove_stale_weight_files(folder_, plan_);
    if (!plan_.index_json.empty()) {
      write_file_atomically(folder_ / kWeightIndexFile, plan_.index_json);
    }
    config_.commit();
  }

 private:
  const fs::path folder_;
  const ShardPlan& plan_;
  AtomicFile config_;
  std::deque<SafetensorsWriter> writers_;
  std::map<std::string, SafetensorsWriter*> writer_of_;
};

// The ranks that hold the first copy of the model.
bool takes_part(const World& world) {
  return std::all_of(kAxes.begin(), kAxes.end(),
                     [&](Axis axis) { return axis == Axis::tp || world.coordinate(axis) == 0; });
}

}  // namespace

void load_weights(const CausalLM& model, ModelState& state, const WeightReader& reader) {
  std::set<std::string> used;
  const at::ScalarType type = model.parameters().precision().master;
  for (const Parameter& parameter : model.parameters().all()) {
    const std::string name = stored_name(reader, parameter.name);
    used.insert(name);
    reader.read(name, parameter.slice, {0, 0}, type);  // a rank whose shard has none of it finds faults too
  }
  state.fill([&](const Parameter& parameter, Range flat) {
    return reader.read(stored_name(reader, parameter.name), parameter.slice, flat, type);
  });
  for (const auto& [name, info] : reader.tensors()) {
    require(used.contains(name) || is_known_extra(name, model.config()),
            "{}: tensor {} of shape {} has no place in the {} that config.json describes", info.file, name, info.shape,
            model.config().model_type);
  }
}

void draw_weights(ModelState& state, uint64_t seed) {
  const at::ScalarType type = state.parameters().precision().master;
  state.fill([&](const Parameter& parameter, Range flat) { return draw_initial(parameter, flat, seed, type); });
}

void export_model(const CausalLM& model, ModelState& state, const World& world, const std::string& folder,
                  int64_t max_shard_bytes) {
  const Declared tensors = declare(model);
  const ShardPlan plan = plan_shards(tensors, max_shard_bytes);
  std::optional<ExportFiles> files;
  if (world.is_main_process()) {
    fs::create_directories(folder);
    const char* dtype = dtype_name(model.parameters().precision().compute);
    files.emplace(folder, tensors, plan, write_model_config(model.config(), dtype));
  }
  for (size_t unit = 0; unit < state.units().size(); ++unit) {
    state.gather(unit);
    for (const Parameter* parameter : state.units()[unit].unit.parameters) {
      const auto whole = takes_part(world) ? gather_whole(parameter->value, parameter->cut, world.group(Axis::tp),
                                                          world.is_main_process(), "export")
                                           : std::nullopt;
      if (whole && files) {
        files->write(parameter->name, *whole);
      }
    }
    state.release_values(unit);
  }
  if (files) {
    files->finish();
  }
  world.barrier("export");
}

}  // namespace tetra
