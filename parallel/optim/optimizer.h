#pragma once
// Optimizers over a parameter set's masters and main gradients.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/parameter.h"

namespace tetra {

struct OptimizerOptions {
  std::string type = "adamw";  // adamw | sgd
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // for parameters with two or more dims
  double momentum = 0.0;      // sgd
  bool nesterov = false;      // sgd
};

/// State is made on the first step, in the master type.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Updates masters, and the model's values with them, from main_grad * grad_scale.
  void step(double lr, double grad_scale);

  /// What a batch without a counted token leaves to do: weight decay alone. Moments and step count stay.
  void decay_only(double lr);

  int64_t steps_done() const { return steps_; }

 protected:
  Optimizer(ParameterSet& parameters, OptimizerOptions options);
  double decay_of(const Parameter& parameter) const;
  virtual void update(size_t index, Parameter& parameter, double lr, double grad_scale, double weight_decay) = 0;

  ParameterSet& parameters_;
  OptimizerOptions options_;
  int64_t steps_ = 0;  // of the step under way, 1-based
};

/// Throws Error for a type that is not known.
std::unique_ptr<Optimizer> make_optimizer(ParameterSet& parameters, const OptimizerOptions& options);

}  // namespace tetra
