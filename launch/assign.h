#pragma once
// Puts one YAML value into the Config by the table of keys.

#include <string>

#include "launch/config_reader.h"
#include "launch/yaml_value.h"

namespace tetra {

/// Assigns `value` to the key `path` ("train.steps"), to all keys of a section ("train", or "" for the whole
/// configuration), or to one field inside model.config. Throws Error with the place on an unknown key, a wrong type and
/// a value that is not allowed.
void assign_path(const std::string& path, const Value& value, const Source& source, LoadedConfig& loaded);

}  // namespace tetra
