#include "launch/config_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <unistd.h>

#include "kernels/error.h"
#include "launch/assign.h"
#include "launch/config_fields.h"
#include "launch/yaml_value.h"

namespace tetra {
namespace {

std::string read_text(const std::string& path) {
  require(!path.empty(), "the configuration file's name is empty");
  std::error_code ignored;
  require(!std::filesystem::is_directory(path, ignored), "{}: is a folder, not a YAML file", path);
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  require(stream.is_open(), "{}: cannot be read: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << stream.rdbuf();
  require(!stream.bad(), "{}: cannot be read: {}", path, std::strerror(errno));
  return text.str();
}

/// Splits at `separator`; refuses empty parts.
std::string dotted(const std::string& name, const std::string& separator, const std::string& origin) {
  std::string path;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find(separator, begin), name.size());
    require(end > begin, "{}: the key '{}' has an empty part", origin, name);
    path += path.empty() ? "" : ".";
    path += name.substr(begin, end - begin);
    begin = end + separator.size();
  }
  return path;
}

void apply_set(const std::string& assignment, LoadedConfig& loaded) {
  const Source source{"--set " + assignment, false};
  const size_t equals = assignment.find('=');
  require(equals != std::string::npos && equals > 0, "{}: must be key=value, as in train.steps=100", source.name);
  const std::string path = dotted(assignment.substr(0, equals), ".", source.name);
  assign_path(path, parse_yaml(assignment.substr(equals + 1), source), source, loaded);
}

void apply_environment(const Variables& environment, LoadedConfig& loaded) {
  const std::string prefix = "TETRA__";
  std::map<std::string, std::string> seen;
  for (const auto& [name, value] : environment) {
    if (name.rfind(prefix, 0) != 0) {
      continue;
    }
    const Source source{name + "=" + value, false};
    std::string path = dotted(name.substr(prefix.size()), "__", source.name);
    std::transform(path.begin(), path.end(), path.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto [other, is_new] = seen.emplace(path, name);
    require(is_new, "{}: {} is already set by {}", source.name, path, other->second);
    assign_path(path, parse_yaml(value, source), source, loaded);
  }
}

void check_exactly_one(const LoadedConfig& loaded, const std::string& a, bool has_a, const std::string& b, bool has_b) {
  require(has_a || has_b, "{}: {} or {} must be given", loaded.file, a, b);
  require(!has_a || !has_b, "{}: {} and {} ({}) are both given; give one and leave out the other, or set it to null",
          loaded.place(a), a, b, loaded.place(b));
}

void check_data(const LoadedConfig& loaded) {
  const DataConfig& data = loaded.config.data;
  check_exactly_one(loaded, "data.text", !data.text.empty(), "data.tokens", !data.tokens.empty());
  for (const auto& [key, value] : {std::pair("data.labels", data.labels), std::pair("data.mask", data.mask)}) {
    require(value.empty() || !data.tokens.empty(), "{}: {} stands beside data.tokens, which is not given",
            loaded.place(key), key);
  }
}

void check_train(const LoadedConfig& loaded) {
  const OptimizerConfig& optimizer = loaded.config.train.optimizer;
  const SchedulerConfig& scheduler = loaded.config.train.scheduler;
  require(optimizer.type == "sgd" || optimizer.momentum == 0,
          "{}: train.optimizer.momentum {} has no meaning for {}; it belongs to sgd",
          loaded.place("train.optimizer.momentum"), optimizer.momentum, optimizer.type);
  require(!optimizer.nesterov || optimizer.momentum > 0,
          "{}: train.optimizer.nesterov needs sgd with train.optimizer.momentum above 0",
          loaded.place("train.optimizer.nesterov"));
  require(scheduler.type == "constant" || scheduler.min_lr <= optimizer.lr,
          "{}: train.scheduler.min_lr {} is above train.optimizer.lr {}", loaded.place("train.scheduler.min_lr"),
          scheduler.min_lr, optimizer.lr);
}

}  // namespace

std::string LoadedConfig::place(const std::string& key) const {
  const auto found = places.find(key);
  return found == places.end() ? file : found->second;
}

LoadedConfig load_config_text(const std::string& text, const ConfigSources& sources) {
  LoadedConfig loaded;
  loaded.file = sources.file;
  const Source file{sources.file, true};
  assign_path("", parse_yaml(text, file), file, loaded);
  apply_environment(sources.environment, loaded);
  for (const std::string& assignment : sources.sets) {
    apply_set(assignment, loaded);
  }
  const ModelSource& model = loaded.config.model;
  check_exactly_one(loaded, "model.from", !model.from.empty(), "model.config", !model.config_json.empty());
  check_data(loaded);
  check_train(loaded);
  return loaded;
}

LoadedConfig load_config(const ConfigSources& sources) {
  return load_config_text(read_text(sources.file), sources);
}

Variables environment_variables() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace tetra
