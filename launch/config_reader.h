#pragma once
// From YAML, environment and --set to a Config, strictly: later sources win, and whatever is not understood is an Error
// with its place.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/config.h"

namespace tetra {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Where a configuration comes from, in rising precedence.
struct ConfigSources {
  std::string file;               // path of the YAML file
  Variables environment;          // TETRA__section__key=value, in any case; others are not looked at
  std::vector<std::string> sets;  // "section.key=value", the last one of a key wins
};

struct LoadedConfig {
  Config config;
  std::string file;
  std::map<std::string, std::string> places;  // of every key that was given: "file.yaml:3:5", "--set seed=1"

  bool given(const std::string& key) const { return places.count(key) > 0; }
  /// Where a key was given, for an error about its value; the file where it was not.
  std::string place(const std::string& key) const;
};

/// Reads and checks everything that the configuration alone can tell. Throws Error.
LoadedConfig load_config(const ConfigSources& sources);

/// The same for a text that was read elsewhere; `sources.file` names it in errors.
LoadedConfig load_config_text(const std::string& text, const ConfigSources& sources);

/// This process's environment.
Variables environment_variables();

/// The whole configuration as YAML that reads back to the same Config.
std::string write_config(const Config& config);

/// The table of all keys in Markdown: key, type, default, allowed values, meaning.
std::string describe_keys();

}  // namespace tetra
