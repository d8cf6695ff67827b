#include "parallel/optim/optimizer.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/error.h"
#include "kernels/optimizer_step.h"

namespace tetra {
namespace {

at::Tensor model_copy(const ParameterSet& parameters, const Parameter& parameter) {
  return parameters.precision().has_masters() ? parameter.value.detach() : at::Tensor();
}

class AdamW final : public Optimizer {
 public:
  AdamW(ParameterSet& parameters, OptimizerOptions options) : Optimizer(parameters, std::move(options)) {
    for (const Parameter& parameter : parameters.all()) {
      exp_avg_.push_back(at::zeros_like(parameter.master));
      exp_avg_sq_.push_back(at::zeros_like(parameter.master));
    }
  }

 private:
  void update(size_t index, Parameter& parameter, double lr, double grad_scale, double weight_decay) override {
    auto model = model_copy(parameters_, parameter);
    adamw_step(parameter.master, parameter.main_grad, exp_avg_[index], exp_avg_sq_[index], model,
               {lr, options_.beta1, options_.beta2, options_.eps, weight_decay, steps_, grad_scale});
  }

  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(ParameterSet& parameters, OptimizerOptions options) : Optimizer(parameters, std::move(options)) {
    for (const Parameter& parameter : parameters.all()) {
      momentum_.push_back(options_.momentum == 0 ? at::Tensor() : at::zeros_like(parameter.master));
    }
  }

 private:
  void update(size_t index, Parameter& parameter, double lr, double grad_scale, double weight_decay) override {
    auto model = model_copy(parameters_, parameter);
    sgd_step(parameter.master, parameter.main_grad, momentum_[index], model,
             {lr, options_.momentum, 0.0, weight_decay, options_.nesterov, steps_ == 1, grad_scale});
  }

  std::vector<at::Tensor> momentum_;
};

}  // namespace

Optimizer::Optimizer(ParameterSet& parameters, OptimizerOptions options)
    : parameters_(parameters), options_(std::move(options)) {}

void Optimizer::step(double lr, double grad_scale) {
  ++steps_;
  size_t index = 0;
  for (Parameter& parameter : parameters_.all()) {
    update(index++, parameter, lr, grad_scale, decay_of(parameter));
  }
}

void Optimizer::decay_only(double lr) {
  for (Parameter& parameter : parameters_.all()) {
    if (const double decay = decay_of(parameter); decay != 0) {
      const at::NoGradGuard no_grad;
      parameter.master.mul_(1.0 - lr * decay);
      if (parameters_.precision().has_masters()) {
        parameter.value.copy_(parameter.master);
      }
    }
  }
}

double Optimizer::decay_of(const Parameter& parameter) const {
  return parameter.cut.global_shape().size() >= 2 ? options_.weight_decay : 0.0;
}

std::unique_ptr<Optimizer> make_optimizer(ParameterSet& parameters, const OptimizerOptions& options) {
  if (options.type == "adamw") {
    return std::make_unique<AdamW>(parameters, options);
  }
  if (options.type == "sgd") {
    return std::make_unique<Sgd>(parameters, options);
  }
  fail("train.optimizer.type {} is not known; use adamw or sgd", options.type);
}

}  // namespace tetra
