#pragma once
// Optimizers over a rank's masters and gradient shards. Every one works element by element, so that a shard is updated
// as the whole would be.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/data/model_state.h"

namespace tetra {

struct OptimizerOptions {
  std::string type = "adamw";  // adamw | sgd | lion
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // for parameters with two or more dims
  double momentum = 0.0;      // sgd
  bool nesterov = false;      // sgd
};

class Optimizer {
 public:
  /// One kind of state that there is for each master: "exp_avg", cut like the masters.
  struct Slot {
    std::string name;
    std::vector<at::Tensor> shards;  // [shard] of each unit, in the master type, where the masters are
  };

  virtual ~Optimizer() = default;

  /// Updates this rank's masters from its gradient shards * grad_scale, then the values of all ranks. Collective over
  /// the shard group.
  void step(double lr, double grad_scale);

  /// What a batch without a counted token leaves to do: weight decay alone. Moments and step count stay.
  void decay_only(double lr);

  std::vector<Slot>& slots() { return slots_; }
  const std::vector<Slot>& slots() const { return slots_; }
  int64_t bytes() const;  // of the slots

  int64_t steps_done() const { return steps_; }
  void set_steps_done(int64_t steps) { steps_ = steps; }

 protected:
  /// One parameter's elements of this rank's shard.
  struct Part {
    at::Tensor master;
    at::Tensor grad;
    std::vector<at::Tensor> slots;
    at::Tensor model;  // copy in the compute type to be written too, or undefined
    double lr;
    double grad_scale;
    double weight_decay;
  };

  Optimizer(ModelState& state, OptimizerOptions options, const std::vector<std::string>& slots);
  virtual void update(Part& piece) const = 0;

  OptimizerOptions options_;
  int64_t steps_ = 0;  // of the step under way, 1-based

 private:
  double decay_of(const Parameter& parameter) const;
  void update_unit(size_t unit, double lr, double grad_scale);
  bool is_offloaded() const;  // masters are on another device than the model

  ModelState& state_;
  std::vector<Slot> slots_;
};

/// Throws Error for a type that is not known.
std::unique_ptr<Optimizer> make_optimizer(ModelState& state, const OptimizerOptions& options);

}  // namespace tetra
