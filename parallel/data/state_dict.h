#pragma once
// State by name, in the three forms that FSDP's users know. SHARDED_STATE_DICT is parts_to_save and parts_to_load of
// state_parts.h. Masters are "weights/PARAMETER", optimizer state "SLOT/PARAMETER".

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "parallel/data/model_state.h"
#include "parallel/optim/optimizer.h"

namespace tetra {

using StateDict = std::map<std::string, at::Tensor>;

/// FULL_STATE_DICT: whole tensors in the master type, on the CPU, to ranks that pass `wanted`; the others get an empty
/// one. One tensor is gathered at a time. `optimizer` may be null. Collective over the shard and tp groups.
StateDict full_state(ModelState& state, Optimizer* optimizer, bool wanted);

/// Every rank takes its own part. Throws Error when a tensor is missing or has another shape. Collective over the shard
/// group.
void load_full_state(ModelState& state, Optimizer* optimizer, const StateDict& dict);

/// LOCAL_STATE_DICT: copies of this rank's flat shards, "weights/unit.0" and so on. Fits the same layout alone.
StateDict local_state(ModelState& state, Optimizer* optimizer);

/// Throws Error when a shard is missing or of another size or type. Collective over the shard group.
void load_local_state(ModelState& state, Optimizer* optimizer, const StateDict& dict);

}  // namespace tetra
