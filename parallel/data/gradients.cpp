#include "parallel/data/gradients.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "kernels/error.h"
#include "kernels/optimizer_step.h"
#include "mesh/group.h"

namespace tetra {

struct GradientReducer::Bucket {
  size_t begin = 0;       // of order_
  size_t parameters = 0;  // how many it holds
  at::Tensor flat;        // their main gradients, one after another
  size_t missing = 0;     // how many of them are not ready in the last micro-batch
  Pending pending;
};

// Runs when autograd has summed a leaf's gradient. It holds the reducer, not a thread-local: on a GPU autograd runs on
// threads of its own.
class GradientReducer::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientReducer* owner, size_t index) : owner_(owner), index_(index) {}
  void operator()(const torch::autograd::Variable&) override { owner_->gradient_ready(index_); }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  void apply_with_saved(torch::autograd::Variable&, torch::dynamo::autograd::SwapSavedVariables&) override {}

 private:
  GradientReducer* owner_;
  size_t index_;
};

GradientReducer::GradientReducer(ParameterSet& parameters, const Group& grad_group, const Group& tp_group,
                                 GradientOptions options)
    : parameters_(parameters), grad_group_(grad_group), tp_group_(tp_group) {
  for (Parameter& parameter : parameters.all()) {
    order_.push_back(&parameter);
  }
  std::reverse(order_.begin(), order_.end());
  touched_.assign(order_.size(), false);
  make_buckets(options.bucket_bytes);
  for (size_t i = 0; i < order_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(order_[i]->value, std::make_unique<Hook>(this, i));
  }
}

GradientReducer::~GradientReducer() {
  for (Parameter* parameter : order_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter->value, nullptr);
  }
}

void GradientReducer::make_buckets(int64_t bucket_bytes) {
  const auto item = static_cast<int64_t>(c10::elementSize(parameters_.precision().master));
  size_t begin = 0;
  while (begin < order_.size()) {
    int64_t numel = 0;
    size_t end = begin;
    while (end < order_.size() && (end == begin || (numel + order_[end]->value.numel()) * item <= bucket_bytes)) {
      numel += order_[end++]->value.numel();
      bucket_of_.push_back(buckets_.size());
    }
    buckets_.push_back({begin, end - begin, {}, 0, {}});
    begin = end;
  }
}

void GradientReducer::give_memory(Bucket& bucket) {
  if (bucket.flat.defined()) {
    return;
  }
  int64_t numel = 0;
  for (size_t i = bucket.begin; i < bucket.begin + bucket.parameters; ++i) {
    numel += order_[i]->value.numel();
  }
  const auto options = at::TensorOptions().dtype(parameters_.precision().master).device(parameters_.device());
  bucket.flat = at::empty({numel}, options);
  int64_t offset = 0;
  for (size_t i = bucket.begin; i < bucket.begin + bucket.parameters; ++i) {
    const auto& value = order_[i]->value;
    order_[i]->main_grad = bucket.flat.narrow(0, offset, value.numel()).view(value.sizes());
    offset += value.numel();
  }
}

void GradientReducer::release() {
  for (Parameter* parameter : order_) {
    parameter->main_grad.reset();
  }
  for (Bucket& bucket : buckets_) {
    bucket.flat.reset();
  }
}

void GradientReducer::begin_micro_batch(bool first, bool last) {
  last_ = last;
  if (first) {
    touched_.assign(order_.size(), false);
    next_bucket_ = 0;
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.parameters;
  }
}

void GradientReducer::gradient_ready(size_t index) {
  Parameter& parameter = *order_[index];
  give_memory(buckets_[bucket_of_[index]]);
  at::Tensor& grad = parameter.value.mutable_grad();
  accumulate_grad(parameter.main_grad, grad.contiguous(), !touched_[index]);
  grad.reset();
  touched_[index] = true;
  if (last_ && --buckets_[bucket_of_[index]].missing == 0) {
    launch_ready_buckets();
  }
}

void GradientReducer::launch_ready_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0) {
    Bucket& bucket = buckets_[next_bucket_++];
    bucket.pending = all_reduce_async(bucket.flat, grad_group_, "data_parallel.gradients");
  }
}

void GradientReducer::finish() {
  for (Bucket& bucket : buckets_) {
    give_memory(bucket);
    bucket.missing = 0;
  }
  for (size_t i = 0; i < order_.size(); ++i) {
    if (!touched_[i]) {
      order_[i]->main_grad.zero_();
    }
  }
  launch_ready_buckets();
  for (Bucket& bucket : buckets_) {
    bucket.pending.wait();
  }
  sum_partials_over_tp();
}

// One all-reduce of all partial gradients together. Where ranks hold overlapping ranges (kv heads), each adds its part
// into a zero tensor of the global shape, so that every element is summed over just the ranks that hold it.
void GradientReducer::sum_partials_over_tp() {
  if (tp_group_.size() == 1) {
    return;
  }
  std::vector<Parameter*> partial;
  int64_t numel = 0;
  for (Parameter* parameter : order_) {
    if (parameter->tp_gradient == TpGradient::partial && parameter->cut.overlaps()) {
      partial.push_back(parameter);
      numel += Slice::whole(parameter->cut.global_shape()).local_numel();
    }
  }
  if (partial.empty()) {
    return;
  }
  auto flat = at::zeros({numel}, partial[0]->main_grad.options());
  const auto for_each_piece = [&](auto&& visit) {
    int64_t offset = 0;
    for (Parameter* parameter : partial) {
      const auto& shape = parameter->cut.global_shape();
      const int64_t size = Slice::whole(shape).local_numel();
      auto global = flat.narrow(0, offset, size).view(shape);
      int64_t local = 0;
      for (const Range& range : parameter->slice.ranges) {
        visit(global.narrow(parameter->slice.dim, range.begin, range.size()),
              parameter->main_grad.narrow(parameter->slice.dim, local, range.size()));
        local += range.size();
      }
      offset += size;
    }
  };
  for_each_piece([](at::Tensor global, const at::Tensor& mine) { global.copy_(mine); });
  all_reduce(flat, tp_group_, "tensor_parallel.gradients");
  for_each_piece([](const at::Tensor& global, at::Tensor mine) { mine.copy_(global); });
}

}  // namespace tetra
