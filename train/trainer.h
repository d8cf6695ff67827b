#pragma once
// One optimizer step at a time, on any mesh.

#include <cstdint>
#include <memory>

#include "mesh/world.h"
#include "models/causal_lm.h"
#include "parallel/data/gradients.h"
#include "parallel/data/model_state.h"
#include "parallel/data/unit_gatherer.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/schedule.h"
#include "train/batch_plan.h"
#include "train/config.h"
#include "train/samples.h"

namespace tetra {

/// What a step did; equal on all ranks.
struct StepResult {
  int64_t step = 0;      // from 1
  double loss = 0;       // mean over the counted tokens of the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t tokens = 0;  // counted: labels that are not -100
};

/// A rank's model, optimizer and data. Everything here is collective over the world.
class Trainer {
 public:
  /// Builds the model and reads or draws its weights. Throws Error on anything in `config` that cannot work.
  Trainer(const Config& config, World& world);

  /// Forward and backward over all micro-batches, reduction, clipping, update. Throws the same Error on all ranks, with
  /// the weights as they were, when the loss or the gradient norm is not finite. A batch without a counted token
  /// changes nothing but what weight decay does.
  StepResult step();

  CausalLM& model() { return *model_; }
  const CausalLM& model() const { return *model_; }
  ModelState& state() { return *state_; }
  Optimizer& optimizer() { return *optimizer_; }

 private:
  struct Window;  // one step's sequences on this rank

  Window read_window() const;
  double backward(const Window& window);
  void update(StepResult& result);

  const Config config_;
  World& world_;
  std::unique_ptr<SampleSource> samples_;
  TensorParallel tp_;
  std::unique_ptr<CausalLM> model_;
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<UnitGatherer> gatherer_;
  std::unique_ptr<GradientReducer> gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  Schedule schedule_;
  BatchPlan plan_;
  int64_t steps_done_ = 0;
};

/// The model that `config.model` names.
ModelConfig resolve_model_config(const ModelSource& source);

}  // namespace tetra
