#pragma once
// Masters and optimizer state as boxes of global tensors: what checkpoints save and load.

#include <vector>

#include "parallel/data/model_state.h"
#include "parallel/data/state_part.h"
#include "parallel/optim/optimizer.h"

namespace tetra {

/// Names: "weights/PARAMETER" for masters, "SLOT/PARAMETER" for optimizer state ("exp_avg/model.norm.weight").
inline constexpr const char* kWeights = "weights";

/// What this rank saves: over all ranks of the world every element exactly once. Ranks that hold the same share it out.
std::vector<StatePart> parts_to_save(ModelState& state, Optimizer& optimizer);

/// Everything that this rank holds, to be read into. After that call ModelState::masters_changed.
std::vector<StatePart> parts_to_load(ModelState& state, Optimizer& optimizer);
/// Masters alone: to start from a checkpoint's weights.
std::vector<StatePart> weights_to_load(ModelState& state);

}  // namespace tetra
