#pragma once
// Weights between a model's parameters and Hugging Face folders.

#include <cstdint>
#include <string>

#include "models/causal_lm.h"
#include "models/safetensors.h"
#include "parallel/data/model_state.h"

namespace tetra {

class World;

/// Fills the masters and values of `state`, which is `model`'s, from `reader`; each rank reads what its shard holds and
/// nothing more. Throws Error when a tensor is missing, has another shape than the config says, or is there though the
/// model has no place for it. Collective over the shard group.
void load_weights(const CausalLM& model, ModelState& state, const WeightReader& reader);

/// Fills them with their initial values, drawn by seed, name and global index: the same on every layout.
void draw_weights(ModelState& state, uint64_t seed);

/// Writes config.json and model.safetensors (or shards with an index, each at most `max_shard_bytes`) into `folder`, in
/// the type that the model computes in. Collective over the world; the main process writes, holding one unit of
/// parameters at a time. Every file appears whole or not at all.
void export_model(const CausalLM& model, ModelState& state, const World& world, const std::string& folder,
                  int64_t max_shard_bytes = int64_t{5} << 30);

}  // namespace tetra
