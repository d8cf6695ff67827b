#pragma once
// The rotary settings of a config.json, in all spellings that transformers 4 and 5 write.

#include <cstdint>

#include <nlohmann/json.hpp>

#include "kernels/rope.h"
#include "models/model_config_fields.h"

namespace tetra {

/// Reads rope_theta, rope_scaling and rope_parameters (flat or by layer type). Throws Error where they contradict each
/// other, on rope types other than default, linear and llama3, and on partial rotation.
RopeConfig parse_rope(const Fields& fields, int64_t head_dim, int64_t max_positions);

/// Sets rope_theta and rope_scaling (transformers 4) and rope_parameters (transformers 5).
void write_rope(const RopeConfig& rope, nlohmann::ordered_json& root);

}  // namespace tetra
