#pragma once
// One optimizer step at a time, on any mesh.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/world.h"
#include "models/causal_lm.h"
#include "parallel/data/gradients.h"
#include "parallel/data/model_state.h"
#include "parallel/data/state_parts.h"
#include "parallel/data/unit_gatherer.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/schedule.h"
#include "train/batch_plan.h"
#include "train/config.h"
#include "train/samples.h"

namespace tetra {

class CheckpointReader;

/// What a step did; equal on all ranks.
struct StepResult {
  int64_t step = 0;      // from 1
  double loss = 0;       // mean over the counted tokens of the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t tokens = 0;                     // counted: labels that are not -100
  std::optional<double> loss_scale = {};  // fp16: of this step
  bool skipped = false;                   // fp16: a gradient overflowed, and nothing was updated
};

/// A rank's model, optimizer and data. Everything here is collective over the world.
class Trainer {
 public:
  /// Builds the model and reads or draws its weights. Throws Error on anything in `config` that cannot work.
  Trainer(const Config& config, World& world);

  /// Forward and backward over all micro-batches, reduction, clipping, update. Throws the same Error on all ranks, with
  /// the weights as they were, when the loss or the gradient norm is not finite. A batch without a counted token
  /// changes nothing but what weight decay does. In fp16 a gradient that is not finite skips the update and the
  /// schedule's step on all ranks, and lowers the loss scale.
  StepResult step();

  /// Steps that have read their batch, skipped ones too.
  int64_t steps_done() const { return steps_done_; }

  /// What a checkpoint holds beside tensors: position, scales and what must agree, as a JSON object.
  std::string state_json() const;
  /// What this rank saves: over all ranks every element of masters and optimizer state once.
  std::vector<StatePart> state_parts() { return parts_to_save(*state_, *optimizer_); }
  /// Goes on from a checkpoint that any layout saved: masters and optimizer state bit for bit. One that has weights
  /// alone (step 0) is a start. Throws Error where it is of another model, optimizer, seed or data. Collective.
  void load(const CheckpointReader& reader);

  CausalLM& model() { return *model_; }
  const CausalLM& model() const { return *model_; }
  ModelState& state() { return *state_; }
  Optimizer& optimizer() { return *optimizer_; }

  /// Called in each step after backward, before weights and optimizer state change.
  void before_update(std::function<void()> call) { before_update_ = std::move(call); }

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
  std::optional<LossScale> loss_scale_;  // fp16
  BatchPlan plan_;
  std::function<void()> before_update_;
  int64_t steps_done_ = 0;

  int64_t skipped() const { return loss_scale_ ? loss_scale_->skipped() : 0; }
};

/// The model that `source` names; `origin` says in errors where a config given as text stands.
ModelConfig resolve_model_config(const ModelSource& source, const std::string& origin = "model.config");

}  // namespace tetra
