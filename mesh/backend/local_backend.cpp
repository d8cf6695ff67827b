#include "mesh/backend/local_backend.h"

#include <utility>

#include "kernels/error.h"
#include "mesh/backend/call_site.h"

namespace tetra {
namespace {

class LocalWork : public c10d::Work {
 public:
  LocalWork(std::shared_ptr<LocalHub> hub, std::shared_ptr<LocalChannel> channel, std::shared_ptr<Exchange> exchange,
            int rank, int party, c10d::OpType type)
      : c10d::Work(rank, type),
        hub_(std::move(hub)),
        channel_(std::move(channel)),
        exchange_(std::move(exchange)),
        party_(party) {}

  bool isCompleted() override { return exchange_->stage == Exchange::Stage::complete; }
  bool isSuccess() const override { return exchange_->stage == Exchange::Stage::complete; }

  bool wait(std::chrono::milliseconds timeout) override {
    channel_->wait(exchange_, party_, timeout);
    return true;
  }

  /// Gives up without an error for the others: for a rank that fails and is about to free its tensors.
  void abort() override { channel_->withdraw(exchange_, party_); }

 private:
  std::shared_ptr<LocalHub> hub_;
  std::shared_ptr<LocalChannel> channel_;
  std::shared_ptr<Exchange> exchange_;
  int party_;
};

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    default:
      fail("local backend: reduction {} is not offered; use sum, max or min", static_cast<int>(op.op_));
  }
}

void check_tensor(const at::Tensor& x) {
  require(x.defined() && x.device().is_cpu() && x.layout() == c10::kStrided && x.is_contiguous(),
          "local backend: tensors must be dense, contiguous and on the CPU");
}

at::Tensor& only(std::vector<at::Tensor>& tensors) {
  require(tensors.size() == 1, "local backend: {} tensors given, one is needed", tensors.size());
  return tensors.front();
}

// c10d counts splits in elements of dim 0; none means equal parts.
std::vector<int64_t> element_splits(const at::Tensor& x, const std::vector<int64_t>& splits, int size) {
  if (splits.empty()) {
    require(x.numel() % size == 0, "local backend: all_to_all of {} elements over {} ranks without splits", x.numel(),
            size);
    return std::vector<int64_t>(static_cast<size_t>(size), x.numel() / size);
  }
  require(static_cast<int>(splits.size()) == size, "local backend: {} splits for {} ranks", splits.size(), size);
  int64_t rows = 0;
  for (int64_t split : splits) {
    require(split >= 0, "local backend: splits [{}] hold a negative number", fmt::join(splits, ", "));
    rows += split;
  }
  require(x.dim() > 0 && rows == x.size(0), "local backend: splits [{}] do not add up to dim 0",
          fmt::join(splits, ", "));
  const int64_t row = rows == 0 ? 0 : x.numel() / rows;
  std::vector<int64_t> result;
  for (int64_t split : splits) {
    result.push_back(split * row);
  }
  return result;
}

}  // namespace

LocalBackend::LocalBackend(std::shared_ptr<LocalHub> hub, std::shared_ptr<LocalChannel> channel, int rank, int size,
                           std::string name)
    : c10d::Backend(rank, size), hub_(std::move(hub)), channel_(std::move(channel)), name_(std::move(name)) {}

Contribution LocalBackend::contribution(LocalOperation operation) const {
  const CallSite& call = CallSite::current();
  Contribution c;
  c.operation = operation;
  c.name = call.operation;
  c.site = call.site;
  c.group = call.group.empty() ? name_ : std::string(call.group);
  return c;
}

Contribution LocalBackend::contribution(LocalOperation operation, const at::Tensor& in, const at::Tensor& out) const {
  check_tensor(in);
  check_tensor(out);
  require(in.scalar_type() == out.scalar_type(), "local backend: in is {}, out is {}", c10::toString(in.scalar_type()),
          c10::toString(out.scalar_type()));
  Contribution c = contribution(operation);
  c.type = in.scalar_type();
  c.in = in.const_data_ptr();
  c.out = out.data_ptr();
  c.in_count = in.numel();
  c.out_count = out.numel();
  c.keep.push_back(in.storage());
  if (!out.is_same(in)) {
    c.keep.push_back(out.storage());
  }
  return c;
}

c10::intrusive_ptr<c10d::Work> LocalBackend::post(Contribution contribution, c10d::OpType type) {
  auto exchange = channel_->post(rank_, std::move(contribution));
  return c10::make_intrusive<LocalWork>(hub_, channel_, std::move(exchange), rank_, rank_, type);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                       const c10d::BroadcastOptions& options) {
  const at::Tensor& x = only(tensors);
  require(options.rootRank >= 0 && options.rootRank < size_, "local backend: root {} is not in [0, {})",
          options.rootRank, size_);
  Contribution c = contribution(LocalOperation::broadcast, x, x);
  c.root = static_cast<int>(options.rootRank);
  return post(std::move(c), c10d::OpType::BROADCAST);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                       const c10d::AllreduceOptions& options) {
  const at::Tensor& x = only(tensors);
  Contribution c = contribution(LocalOperation::all_reduce, x, x);
  c.reduce = reduce_op(options.reduceOp);
  return post(std::move(c), c10d::OpType::ALLREDUCE);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::_allgather_base(at::Tensor& out, at::Tensor& in,
                                                             const c10d::AllgatherOptions& /*options*/) {
  require(out.numel() == in.numel() * size_, "local backend: all_gather of {} elements from {} ranks into {}",
          in.numel(), size_, out.numel());
  return post(contribution(LocalOperation::all_gather, in, out), c10d::OpType::_ALLGATHER_BASE);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::_reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                                  const c10d::ReduceScatterOptions& options) {
  require(in.numel() == out.numel() * size_, "local backend: reduce_scatter of {} elements over {} ranks into {}",
          in.numel(), size_, out.numel());
  Contribution c = contribution(LocalOperation::reduce_scatter, in, out);
  c.reduce = reduce_op(options.reduceOp);
  return post(std::move(c), c10d::OpType::_REDUCE_SCATTER_BASE);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::alltoall_base(at::Tensor& out, at::Tensor& in,
                                                           std::vector<int64_t>& out_splits,
                                                           std::vector<int64_t>& in_splits,
                                                           const c10d::AllToAllOptions& /*options*/) {
  Contribution c = contribution(LocalOperation::all_to_all, in, out);
  c.in_splits = element_splits(in, in_splits, size_);
  c.out_splits = element_splits(out, out_splits, size_);
  return post(std::move(c), c10d::OpType::ALLTOALL_BASE);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::send(std::vector<at::Tensor>& tensors, int receiver, int tag) {
  const at::Tensor& x = only(tensors);
  require(receiver >= 0 && receiver < size_ && receiver != rank_, "local backend: rank {} cannot send to {}", rank_,
          receiver);
  auto exchange = channel_->post_message(rank_, receiver, tag, true, contribution(LocalOperation::message, x, x));
  return c10::make_intrusive<LocalWork>(hub_, channel_, std::move(exchange), rank_, 0, c10d::OpType::SEND);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::recv(std::vector<at::Tensor>& tensors, int sender, int tag) {
  const at::Tensor& x = only(tensors);
  require(sender >= 0 && sender < size_ && sender != rank_, "local backend: rank {} cannot receive from {}", rank_,
          sender);
  auto exchange = channel_->post_message(sender, rank_, tag, false, contribution(LocalOperation::message, x, x));
  return c10::make_intrusive<LocalWork>(hub_, channel_, std::move(exchange), rank_, 1, c10d::OpType::RECV);
}

c10::intrusive_ptr<c10d::Work> LocalBackend::barrier(const c10d::BarrierOptions& /*options*/) {
  return post(contribution(LocalOperation::barrier), c10d::OpType::BARRIER);
}

}  // namespace tetra
