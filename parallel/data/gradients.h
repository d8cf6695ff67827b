#pragma once
// Main gradients: summed over micro-batches, completed over tp, and summed over the data-parallel ranks unit by unit
// while backward runs (Li et al., "PyTorch Distributed", VLDB 2020; Rajbhandari et al., "ZeRO", SC 2020).

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/collectives.h"
#include "parallel/data/model_state.h"

namespace tetra {

/// Brings each micro-batch's gradients into the units' grad_shard. Autograd's gradient of a parameter is ADDED to its
/// unit's whole gradient as soon as it is ready, and freed. A unit whose last gradient is in goes on its way: at each
/// micro-batch where whole gradients are not kept (stages 2 and 3), else in the window's last one. Every reduction is a
/// sum: the loss carries the division.
class GradientReducer {
 public:
  explicit GradientReducer(ModelState& state);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Call around each backward of the window; `first` and `last` say which micro-batch it is. After the last end every
  /// grad_shard is the sum over the window and all ranks; parameters that got no gradient have zeros. Collective over
  /// the groups of the state, on every rank alike.
  void begin_micro_batch(bool first, bool last);
  void end_micro_batch();

  /// Gives the gradients' memory back, once the optimizer has read them: it is made anew, unit by unit, while the next
  /// backward frees activations. Leaving it out costs just memory.
  void release();

  /// `done(unit)` is called when backward has finished with a unit's values in a micro-batch.
  void on_unit_done(std::function<void(size_t)> done) { unit_done_ = std::move(done); }

 private:
  class Hook;
  struct Progress;   // one unit's, within a window
  struct Reduction;  // one unit's, under way

  void gradient_ready(size_t unit, size_t position);
  void give_memory(size_t unit);
  void launch_ready_units();
  void launch(size_t unit);
  void complete_oldest();
  void sum_partials_over_tp(size_t unit);
  bool keeps_whole_gradients() const;

  ModelState& state_;
  std::vector<Progress> progress_;    // of each unit
  std::deque<Reduction> under_way_;   // oldest first
  std::vector<Pending> replicating_;  // all-reduces of finished shards
  std::function<void(size_t)> unit_done_;
  size_t next_unit_ = 0;  // to launch, counted from the model's end: the same order on every rank
  bool first_ = false;
  bool last_ = false;
};

}  // namespace tetra
