#include "parallel/data/gradients.h"

#include <memory>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "kernels/error.h"
#include "kernels/optimizer_step.h"
#include "mesh/group.h"

namespace tetra {

struct GradientReducer::Progress {
  at::Tensor whole;           // [padded], master type: this rank's gradients, while it keeps them
  std::vector<bool> touched;  // which parameters have something in `whole`
  size_t missing = 0;         // parameters without a gradient in this micro-batch
};

struct GradientReducer::Reduction {
  size_t unit;
  at::Tensor sent;      // kept alive until the message is through
  at::Tensor received;  // [shard], type on the wire
  Pending pending;
};

// Runs when autograd has summed a leaf's gradient. It holds the reducer, not a thread-local: on a GPU autograd runs on
// threads of its own.
class GradientReducer::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientReducer* owner, size_t unit, size_t position) : owner_(owner), unit_(unit), position_(position) {}
  void operator()(const torch::autograd::Variable&) override { owner_->gradient_ready(unit_, position_); }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  void apply_with_saved(torch::autograd::Variable&, torch::dynamo::autograd::SwapSavedVariables&) override {}

 private:
  GradientReducer* owner_;
  size_t unit_;
  size_t position_;
};

GradientReducer::GradientReducer(ModelState& state) : state_(state), progress_(state.units().size()) {
  for (size_t u = 0; u < progress_.size(); ++u) {
    const auto& parameters = state.units()[u].unit.parameters;
    progress_[u].touched.assign(parameters.size(), false);
    for (size_t i = 0; i < parameters.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameters[i]->value, std::make_unique<Hook>(this, u, i));
    }
  }
}

GradientReducer::~GradientReducer() {
  for (const UnitState& state : state_.units()) {
    for (Parameter* parameter : state.unit.parameters) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter->value, nullptr);
    }
  }
}

bool GradientReducer::keeps_whole_gradients() const {
  const ShardingOptions& options = state_.options();
  return state_.groups().shard->size() == 1 || options.zero_stage < 2 || !options.reduce_each_micro_batch;
}

void GradientReducer::give_memory(size_t unit) {
  Progress& progress = progress_[unit];
  if (progress.whole.defined()) {
    return;
  }
  const UnitState& state = state_.units()[unit];
  const auto& parameters = state_.parameters();
  const auto options = at::TensorOptions().dtype(parameters.precision().master).device(parameters.device());
  progress.whole = at::empty({state.unit.padded(state_.groups().shard->size())}, options);
  progress.whole.narrow(0, state.unit.numel, progress.whole.numel() - state.unit.numel).zero_();
  progress.touched.assign(state.unit.parameters.size(), false);
}

void GradientReducer::release() {
  for (size_t u = 0; u < progress_.size(); ++u) {
    progress_[u].whole.reset();
    state_.units()[u].grad_shard.reset();
  }
}

void GradientReducer::begin_micro_batch(bool first, bool last) {
  first_ = first;
  last_ = last;
  next_unit_ = 0;
  for (size_t u = 0; u < progress_.size(); ++u) {
    progress_[u].missing = state_.units()[u].unit.parameters.size();
    if (first) {
      progress_[u].touched.assign(progress_[u].missing, false);
    }
  }
}

void GradientReducer::gradient_ready(size_t unit, size_t position) {
  const UnitState& state = state_.units()[unit];
  Progress& progress = progress_[unit];
  give_memory(unit);
  const Parameter& parameter = *state.unit.parameters[position];
  at::Tensor& grad = parameter.value.mutable_grad();
  auto main = progress.whole.narrow(0, state.unit.offsets[position], grad.numel());
  accumulate_grad(main, grad.contiguous(), !progress.touched[position]);
  grad.reset();
  progress.touched[position] = true;
  if (--progress.missing == 0) {
    if (unit_done_) {
      unit_done_(unit);
    }
    launch_ready_units();
  }
}

void GradientReducer::launch_ready_units() {
  if (keeps_whole_gradients() && !last_) {
    return;
  }
  while (next_unit_ < progress_.size() && progress_[progress_.size() - 1 - next_unit_].missing == 0) {
    launch(progress_.size() - 1 - next_unit_++);
  }
}

void GradientReducer::launch(size_t unit) {
  UnitState& state = state_.units()[unit];
  Progress& progress = progress_[unit];
  give_memory(unit);
  for (size_t i = 0; i < progress.touched.size(); ++i) {
    if (!progress.touched[i]) {
      progress.whole.narrow(0, state.unit.offsets[i], state.unit.parameters[i]->slice.local_numel()).zero_();
    }
  }
  sum_partials_over_tp(unit);
  while (!under_way_.empty()) {  // one unit is sent while the next one fills: two are whole at a time
    complete_oldest();
  }
  Reduction& reduction = under_way_.emplace_back();
  reduction.unit = unit;
  const Group& shard = *state_.groups().shard;
  if (shard.size() == 1) {
    reduction.received = progress.whole;
    return;
  }
  const auto wire = state_.options().reduce_type;
  reduction.sent = wire == at::ScalarType::Undefined ? progress.whole : progress.whole.to(wire);
  reduction.received = at::empty({state.unit.shard_numel}, reduction.sent.options());
  reduction.pending = reduce_scatter_async(reduction.received, reduction.sent, shard, "sharding.gradients");
  progress.whole.reset();
}

void GradientReducer::complete_oldest() {
  Reduction reduction = std::move(under_way_.front());
  under_way_.pop_front();
  reduction.pending.wait();
  reduction.sent.reset();
  UnitState& state = state_.units()[reduction.unit];
  if (first_ || keeps_whole_gradients()) {
    state.grad_shard = reduction.received.to(state_.parameters().precision().master);
  } else {
    accumulate_grad(state.grad_shard, reduction.received, /*first=*/false);
  }
  if (last_) {
    replicating_.push_back(all_reduce_async(state.grad_shard, *state_.groups().replicate, "data_parallel.gradients"));
  }
}

void GradientReducer::end_micro_batch() {
  for (size_t u = 0; u < progress_.size(); ++u) {
    if (progress_[u].missing != 0 && unit_done_) {
      unit_done_(u);
    }
    progress_[u].missing = 0;
  }
  launch_ready_units();
  while (!under_way_.empty()) {
    complete_oldest();
  }
  for (Pending& one : replicating_) {
    one.wait();
  }
  replicating_.clear();
}

// One all-reduce of all partial gradients of a unit. Where ranks hold overlapping ranges (kv heads), each adds its part
// into a zero tensor of the global shape, so that every element is summed over just the ranks that hold it. It comes
// before the sum over shards: the ranks of a tp group may cut their units at different elements.
void GradientReducer::sum_partials_over_tp(size_t unit) {
  const Group& tp = *state_.groups().tp;
  const UnitState& state = state_.units()[unit];
  std::vector<size_t> partial;
  int64_t numel = 0;
  for (size_t i = 0; i < state.unit.parameters.size(); ++i) {
    const Parameter& parameter = *state.unit.parameters[i];
    if (parameter.tp_gradient == TpGradient::partial && parameter.cut.overlaps()) {
      partial.push_back(i);
      numel += Slice::whole(parameter.cut.global_shape()).local_numel();
    }
  }
  if (tp.size() == 1 || partial.empty()) {
    return;
  }
  auto flat = at::zeros({numel}, progress_[unit].whole.options());
  const auto for_each_piece = [&](auto&& visit) {
    int64_t offset = 0;
    for (const size_t i : partial) {
      const Parameter& parameter = *state.unit.parameters[i];
      const auto& shape = parameter.cut.global_shape();
      const int64_t size = Slice::whole(shape).local_numel();
      auto global = flat.narrow(0, offset, size).view(shape);
      const auto mine = progress_[unit]
                            .whole.narrow(0, state.unit.offsets[i], parameter.slice.local_numel())
                            .view(parameter.slice.local_shape());
      int64_t local = 0;
      for (const Range& range : parameter.slice.ranges) {
        visit(global.narrow(parameter.slice.dim, range.begin, range.size()),
              mine.narrow(parameter.slice.dim, local, range.size()));
        local += range.size();
      }
      offset += size;
    }
  };
  for_each_piece([](at::Tensor global, const at::Tensor& mine) { global.copy_(mine); });
  all_reduce(flat, tp, "tensor_parallel.gradients");
  for_each_piece([](const at::Tensor& global, at::Tensor mine) { mine.copy_(global); });
}

}  // namespace tetra
