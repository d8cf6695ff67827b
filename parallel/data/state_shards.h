#pragma once
// A rank's shards of all kinds: masters and each kind of optimizer state.

#include <string>

#include "parallel/data/model_state.h"
#include "parallel/data/state_parts.h"
#include "parallel/optim/optimizer.h"

namespace tetra {

/// visit(kind, unit, shard) for each; `optimizer` may be null.
template <typename Visit>
void for_each_shard(ModelState& state, Optimizer* optimizer, const Visit& visit) {
  for (size_t unit = 0; unit < state.units().size(); ++unit) {
    visit(std::string(kWeights), unit, state.units()[unit].master_shard);
    if (optimizer != nullptr) {
      for (Optimizer::Slot& slot : optimizer->slots()) {
        visit(slot.name, unit, slot.shards[unit]);
      }
    }
  }
}

}  // namespace tetra
