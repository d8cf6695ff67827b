#pragma once
// What the configuration can say but Tetra does not do yet. It is refused by name, never ignored, and only here.

#include "launch/config_reader.h"
#include "train/config.h"

namespace tetra {

/// Throws Error naming the first key that asks for something Tetra does not do yet:
/// "parallelism.pp_size 2: pipeline parallelism is not there yet; use 1".
void check_supported(const Config& config);

/// The same, with the place where the key was given.
void check_supported(const LoadedConfig& loaded);

}  // namespace tetra
