#include "parallel/optim/optimizer.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/error.h"
#include "kernels/optimizer_step.h"

namespace tetra {
namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(ModelState& state, OptimizerOptions options)
      : Optimizer(state, std::move(options), {"exp_avg", "exp_avg_sq"}) {}

 private:
  void update(Part& p) const override {
    adamw_step(p.master, p.grad, p.slots[0], p.slots[1], p.model,
               {p.lr, options_.beta1, options_.beta2, options_.eps, p.weight_decay, steps_, p.grad_scale});
  }
};

class Sgd final : public Optimizer {
 public:
  Sgd(ModelState& state, const OptimizerOptions& options)
      : Optimizer(state, options,
                  options.momentum == 0 ? std::vector<std::string>() : std::vector<std::string>{"momentum"}) {}

 private:
  void update(Part& p) const override {
    at::Tensor momentum = p.slots.empty() ? at::Tensor() : p.slots[0];
    sgd_step(p.master, p.grad, momentum, p.model,
             {p.lr, options_.momentum, 0.0, p.weight_decay, options_.nesterov, steps_ == 1, p.grad_scale});
  }
};

// Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
class Lion final : public Optimizer {
 public:
  Lion(ModelState& state, OptimizerOptions options) : Optimizer(state, std::move(options), {"exp_avg"}) {}

 private:
  void update(Part& p) const override {
    lion_step(p.master, p.grad, p.slots[0], p.model,
              {p.lr, options_.beta1, options_.beta2, p.weight_decay, p.grad_scale});
  }
};

}  // namespace

Optimizer::Optimizer(ModelState& state, OptimizerOptions options, const std::vector<std::string>& slots)
    : options_(std::move(options)), state_(state) {
  for (const std::string& name : slots) {
    Slot& slot = slots_.emplace_back();
    slot.name = name;
    for (const UnitState& unit : state.units()) {
      slot.shards.push_back(at::zeros_like(unit.master_shard));
    }
  }
}

bool Optimizer::is_offloaded() const {
  return state_.state_device() != state_.parameters().device();
}

void Optimizer::step(double lr, double grad_scale) {
  ++steps_;
  for (size_t u = 0; u < state_.units().size(); ++u) {
    update_unit(u, lr, grad_scale);
  }
  // The kernels write the values beside the masters, where they are on one device.
  is_offloaded() ? state_.masters_changed() : state_.publish();
}

void Optimizer::update_unit(size_t unit, double lr, double grad_scale) {
  UnitState& state = state_.units()[unit];
  const bool has_copy = !is_offloaded() && state.value_shard.defined() && state_.parameters().precision().has_masters();
  const at::Tensor grads = state.grad_shard.to(state_.state_device());
  for (const Segment& segment : state.segments) {
    const auto part = [&](const at::Tensor& shard) { return shard.narrow(0, segment.offset, segment.size()); };
    Part mine{part(state.master_shard), part(grads), {}, {}, lr, grad_scale, decay_of(*segment.parameter)};
    for (const Slot& slot : slots_) {
      mine.slots.push_back(part(slot.shards[unit]));
    }
    if (has_copy) {
      mine.model = part(state.value_shard);
    }
    update(mine);
  }
}

void Optimizer::decay_only(double lr) {
  const at::NoGradGuard no_grad;
  for (UnitState& unit : state_.units()) {
    for (const Segment& segment : unit.segments) {
      if (const double decay = decay_of(*segment.parameter); decay != 0) {
        unit.master_shard.narrow(0, segment.offset, segment.size()).mul_(1.0 - lr * decay);
      }
    }
  }
  state_.masters_changed();
}

int64_t Optimizer::bytes() const {
  int64_t total = 0;
  for (const Slot& slot : slots_) {
    for (const at::Tensor& shard : slot.shards) {
      total += static_cast<int64_t>(shard.nbytes());
    }
  }
  return total;
}

double Optimizer::decay_of(const Parameter& parameter) const {
  return parameter.cut.global_shape().size() >= 2 ? options_.weight_decay : 0.0;
}

std::unique_ptr<Optimizer> make_optimizer(ModelState& state, const OptimizerOptions& options) {
  if (options.type == "adamw") {
    return std::make_unique<AdamW>(state, options);
  }
  if (options.type == "sgd") {
    return std::make_unique<Sgd>(state, options);
  }
  if (options.type == "lion") {
    return std::make_unique<Lion>(state, options);
  }
  fail("train.optimizer.type {} is not known; use adamw, sgd or lion", options.type);
}

}  // namespace tetra
