#pragma once
// ZeRO stage 3 while a model runs: a unit's values are there just around its use, and on their way before it.

#include <cstdint>
#include <vector>

#include "mesh/collectives.h"
#include "parallel/data/model_state.h"
#include "parallel/piece_hooks.h"

namespace tetra {

/// Fetches the values of the units that a piece uses before its forward and before its backward, with up to
/// prefetch_units more under way, and gives their memory back after the forward (reshard_after_forward) and when
/// backward has finished with them. At most 1 + prefetch_units units have whole values at a time, beside those that
/// several pieces use. Does nothing where values stay in memory. All calls are collective over the shard group.
class UnitGatherer final : public PieceHooks {
 public:
  explicit UnitGatherer(ModelState& state);

  void before_forward(int64_t piece) override;
  at::Tensor after_forward(int64_t piece, const at::Tensor& output) override;
  /// Runs when backward reaches the piece's output.
  void before_backward(int64_t piece);
  /// Backward has every gradient of the unit.
  void unit_done(size_t unit);

 private:
  void fetch(int64_t piece);
  void await(int64_t piece);
  void fetch_ahead(int64_t piece, int64_t direction);

  ModelState& state_;
  std::vector<std::vector<size_t>> units_of_;  // a piece's
  std::vector<Pending> pending_;               // of each unit
};

}  // namespace tetra
