#include "models/weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "mesh/world.h"
#include "models/hugging_face_folder.h"
#include "parallel/tensor/gather.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;

DeclaredTensors declare(const CausalLM& model) {
  DeclaredTensors tensors;
  for (const Parameter& parameter : model.parameters().all()) {
    tensors.push_back({parameter.name, {parameter.value.scalar_type(), parameter.cut.global_shape()}});
  }
  return tensors;
}

// Names in the files by names of parameters. Throws Error for a tensor that the model has no place for.
std::map<std::string, std::string> stored_names(const CausalLM& model, const WeightReader& reader) {
  std::set<std::string> known;
  for (const Parameter& parameter : model.parameters().all()) {
    known.insert(parameter.name);
  }
  std::map<std::string, std::string> stored;
  for (const auto& [name, info] : reader.tensors()) {
    const std::string parameter = parameter_name(name, model.config());
    require(parameter.empty() || known.contains(parameter),
            "{}: tensor {} of shape {} has no place in the {} that config.json describes", info.file, name, info.shape,
            model.config().model_type);
    stored[parameter] = name;
  }
  return stored;
}

// The ranks that hold the first copy of the model.
bool takes_part(const World& world) {
  return std::all_of(kAxes.begin(), kAxes.end(),
                     [&](Axis axis) { return axis == Axis::tp || world.coordinate(axis) == 0; });
}

}  // namespace

void load_weights(const CausalLM& model, ModelState& state, const WeightReader& reader) {
  const at::ScalarType type = model.parameters().precision().master;
  const auto stored = stored_names(model, reader);
  const auto name_of = [&](const Parameter& parameter) {
    const auto found = stored.find(parameter.name);
    return found == stored.end() ? parameter.name : found->second;
  };
  for (const Parameter& parameter : model.parameters().all()) {
    reader.read(name_of(parameter), parameter.slice, {0, 0},
                type);  // a rank whose shard has none of it finds faults too
  }
  state.fill([&](const Parameter& parameter, Range flat) {
    return reader.read(name_of(parameter), parameter.slice, flat, type);
  });
}

void draw_weights(ModelState& state, uint64_t seed) {
  const at::ScalarType type = state.parameters().precision().master;
  state.fill([&](const Parameter& parameter, Range flat) { return draw_initial(parameter, flat, seed, type); });
}

void export_model(const CausalLM& model, ModelState& state, const World& world, const std::string& folder,
                  int64_t max_shard_bytes) {
  std::optional<HuggingFaceFolder> files;
  if (world.is_main_process()) {
    fs::create_directories(folder);
    const char* dtype = config_dtype(model.parameters().precision().compute);
    files.emplace(folder, declare(model), max_shard_bytes, write_model_config(model.config(), dtype));
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
