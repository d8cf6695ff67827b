#include "parallel/recompute/recompute.h"

#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "kernels/error.h"

namespace tetra {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// `x` as the output of `node`: the same memory, another place in the graph.
at::Tensor output_of(const std::shared_ptr<Node>& node, const at::Tensor& x) {
  at::Tensor y = x.detach();
  torch::autograd::set_history(y, node);
  return y;
}

/// The one tensor that a recomputed segment keeps.
class KeptInput {
 public:
  KeptInput(const at::Tensor& input, bool in_host_memory) : device_(input.device()) {
    at::Tensor kept = input;
    if (in_host_memory && !device_.is_cpu()) {
      const auto options = input.options().device(at::kCPU).pinned_memory(device_.is_cuda());
      kept = at::empty(input.sizes(), options).copy_(input.detach(), /*non_blocking=*/device_.is_cuda());
    }
    saved_ = torch::autograd::SavedVariable(kept, /*is_output=*/false);
  }
  /// On the segment's device, apart from any graph.
  at::Tensor get() const { return saved_.unpack().detach().to(device_, /*non_blocking=*/device_.is_cuda()); }
  void release() { saved_.reset_data(); }

 private:
  at::Device device_;
  torch::autograd::SavedVariable saved_;  // notices writes to the tensor
};

class RecomputeNode : public Node {
 public:
  RecomputeNode(std::function<at::Tensor(const at::Tensor&)> segment, const at::Tensor& input, bool in_host_memory)
      : Node(torch::autograd::collect_next_edges(input)),
        segment_(std::move(segment)),
        input_(input, in_host_memory),
        input_needs_gradient_(input.requires_grad()) {}

  std::string name() const override { return "Recompute"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    input_.release();
    segment_ = nullptr;
  }

 protected:
  variable_list apply(variable_list&& grads) override {
    require(!at::GradMode::is_enabled(), "recompute: gradients of gradients do not pass through a recomputed segment");
    require(segment_ != nullptr,
            "recompute: a second backward through a graph that the first one freed; keep it with retain_graph");
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    const at::AutoGradMode with_graph(true);
    const at::Tensor x = input_.get().requires_grad_(input_needs_gradient_);
    const at::Tensor y = segment_(x);
    if (y.requires_grad()) {
      torch::autograd::backward({y}, {grads[0]});
    }
    return {x.grad()};
  }

 private:
  std::function<at::Tensor(const at::Tensor&)> segment_;
  KeptInput input_;
  bool input_needs_gradient_;
};

at::Tensor without_graph(const std::function<at::Tensor(const at::Tensor&)>& segment, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  return segment(input);
}

}  // namespace

at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> segment, const at::Tensor& input,
                     RecomputeOptions options) {
  require(segment != nullptr && input.defined(), "recompute: there is no {}", segment ? "input" : "segment");
  at::Tensor y = without_graph(segment, input);
  if (!at::GradMode::is_enabled()) {
    return y;
  }
  const std::shared_ptr<Node> node(new RecomputeNode(std::move(segment), input, options.input_in_host_memory),
                                   torch::autograd::deleteNode);
  return output_of(node, y);
}

/// The memory of a tensor that others hold: saved for a backward, as a rule. Once they are done with it it goes, so
/// nothing here holds on to it.
struct DiscardedOutput::Memory {
  Memory(const at::Tensor& output, std::function<at::Tensor()> make_again)
      : storage(output.storage().getWeakStorageImpl()),
        bytes(output.storage().nbytes()),
        sizes(output.sizes().vec()),
        strides(output.strides().vec()),
        options(output.options()),
        make(std::move(make_again)) {}

  void free();
  void restore();
  bool move_in(c10::StorageImpl& to, const at::Tensor& made) const;
  void copy_in(const c10::intrusive_ptr<c10::StorageImpl>& to, const at::Tensor& made) const;

  std::mutex mutex;  // consumers' backward may run on several threads
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  size_t bytes;
  std::vector<int64_t> sizes, strides;
  at::TensorOptions options;
  std::function<at::Tensor()> make;
  bool empty = false;
};

void DiscardedOutput::Memory::free() {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto held = storage.lock();
  if (!held || empty) {
    return;
  }
  // Beneath the tensors, so their versions stay: for autograd nothing was written.
  held->set_data_ptr_noswap(at::DataPtr(nullptr, held->device()));
  held->set_nbytes(static_cast<size_t>(0));
  empty = true;
}

void DiscardedOutput::Memory::restore() {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto held = storage.lock();
  if (!held || !empty) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor made = make();
  require(made.sizes() == at::IntArrayRef(sizes) && made.scalar_type() == options.dtype().toScalarType() &&
              made.device() == options.device(),
          "discarded output: made again with sizes {} of {} on {}, was {} of {} on {}", made.sizes(),
          at::toString(made.scalar_type()), made.device().str(), at::IntArrayRef(sizes),
          at::toString(options.dtype().toScalarType()), options.device().str());
  if (!move_in(*held, made)) {
    copy_in(held, made);
  }
  empty = false;
}

/// Takes the new tensor's memory where it is its own and laid out alike.
bool DiscardedOutput::Memory::move_in(c10::StorageImpl& to, const at::Tensor& made) const {
  c10::StorageImpl& from = *made.storage().unsafeGetStorageImpl();
  if (made.use_count() != 1 || made.storage().use_count() != 1 || from.nbytes() != bytes ||
      made.storage_offset() != 0 || made.strides() != at::IntArrayRef(strides) || from.allocator() != to.allocator()) {
    return false;
  }
  to.set_data_ptr_noswap(std::move(from.mutable_data_ptr()));
  to.set_nbytes(bytes);
  from.set_nbytes(static_cast<size_t>(0));
  return true;
}

void DiscardedOutput::Memory::copy_in(const c10::intrusive_ptr<c10::StorageImpl>& to, const at::Tensor& made) const {
  to->set_data_ptr_noswap(to->allocator()->allocate(bytes));
  to->set_nbytes(bytes);
  // A tensor of its own, with a version of its own.
  at::Tensor target = at::empty({0}, options);
  target.set_(c10::Storage(to), 0, sizes, strides);
  target.copy_(made);
}

class DiscardedOutput::Restore : public Node {
 public:
  Restore(const at::Tensor& output, std::shared_ptr<Memory> memory)
      : Node(torch::autograd::collect_next_edges(output)), memory_(std::move(memory)) {}

  std::string name() const override { return "RestoreDiscardedOutput"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    memory_.reset();
  }

 protected:
  variable_list apply(variable_list&& grads) override {
    require(memory_ != nullptr,
            "discarded output: a second backward through a graph that the first one freed; keep it with retain_graph");
    memory_->restore();
    return std::move(grads);
  }

 private:
  std::shared_ptr<Memory> memory_;
};

DiscardedOutput::DiscardedOutput(const at::Tensor& output, std::function<at::Tensor()> make, bool kept_by_maker) {
  require(output.defined() && make != nullptr, "discarded output: there is no {}",
          output.defined() ? "function that makes it" : "tensor");
  const c10::Storage& storage = output.storage();
  const size_t own = static_cast<size_t>(output.numel()) * output.element_size();
  const bool alone = !output.is_view() && storage.use_count() == 1;
  require(
      storage.nbytes() == own && output.is_non_overlapping_and_dense() && (alone || kept_by_maker) &&
          storage.allocator() != nullptr,
      "discarded output: a tensor of {} bytes in a memory of {} bytes that {} tensors share{}; give the tensor that "
      "the operation returned, before it is viewed or consumed",
      own, storage.nbytes(), storage.use_count(), output.is_view() ? ", a view" : "");
  memory_ = std::make_shared<Memory>(output, std::move(make));
}

void DiscardedOutput::discard() {
  memory_->free();
}

at::Tensor DiscardedOutput::restore_for(const at::Tensor& consumer_output) const {
  if (!at::GradMode::is_enabled() || !consumer_output.requires_grad()) {
    return consumer_output;
  }
  return output_of(std::shared_ptr<Node>(new Restore(consumer_output, memory_), torch::autograd::deleteNode),
                   consumer_output);
}

}  // namespace tetra
