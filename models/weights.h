#pragma once
// Weights between a model's parameters and Hugging Face folders.

#include <cstdint>
#include <string>

#include "models/causal_lm.h"
#include "models/safetensors.h"

namespace tetra {

class World;

/// Fills every parameter from `reader`; each rank reads the slices that it holds and nothing more. Throws Error when a
/// tensor is missing, has another shape than the config says, or is there though the model has no place for it.
void load_weights(CausalLM& model, const WeightReader& reader);

/// Fills every parameter with its initial value, drawn by seed, name and global index: the same on every layout.
void draw_weights(CausalLM& model, uint64_t seed);

/// Writes config.json and model.safetensors (or shards with an index, each at most `max_shard_bytes`) into `folder`, in
/// the type that the model computes in. Collective over the world; the main process writes, holding one tensor at a
/// time. Every file appears whole or not at all.
void export_model(const CausalLM& model, const World& world, const std::string& folder,
                  int64_t max_shard_bytes = int64_t{5} << 30);

}  // namespace tetra
