#pragma once
// Collectives for CPU tensors over a Wire: a c10d backend whose operations are short lists of stages. A stage posts
// messages or computes, and the next one starts when all its messages are done. Sums are taken by ordered_reduce, so
// they are equal to the last bit to those of every other backend that uses it.

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mesh/backend/wire.h"

namespace tetra {

class WireWork;

/// Drives the operations under way of all groups of one process. They share it because a rank that waits in one group
/// must still do its part in another.
class Progress {
 public:
  /// `patient`: ranks outnumber cores, so that a waiting rank must leave its core to the others.
  explicit Progress(bool patient) : patient_(patient) {}

  void post(const c10::intrusive_ptr<WireWork>& work);
  /// Error on time-out, naming the ranks that are waited for.
  void finish(WireWork& work, std::chrono::milliseconds timeout);
  bool poll(WireWork& work);
  bool idle();

 private:
  void poll_all();
  void finish_by_blocking(WireWork& work, std::chrono::milliseconds timeout);
  void finish_by_polling(WireWork& work, std::chrono::milliseconds timeout);

  const bool patient_;
  std::mutex mutex_;  // also keeps calls into the transport one at a time
  std::deque<c10::intrusive_ptr<WireWork>> active_;
};

/// One operation. Keeps its tensors and buffers alive until its last message is done, also after a time-out.
class WireWork : public c10d::Work {
 public:
  using Stage = std::function<void(WireWork&)>;

  /// `what` names operation, group and rank for errors; `ranks` are the group's global ranks.
  WireWork(std::shared_ptr<Progress> progress, std::shared_ptr<Wire> wire, std::string what, std::vector<int> ranks,
           std::chrono::milliseconds timeout, c10d::OpType type);

  // For the operations' stages.
  void send(const void* data, int64_t bytes, int peer);
  void receive(void* data, int64_t bytes, int peer);
  void then(Stage stage) { stages_.push_back(std::move(stage)); }
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  /// Ranks reach the stages of several operations in different orders, so each operation has a channel of its own.
  void set_channel(Channel channel) { channel_ = channel; }

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  /// The peers still need this rank's part: it is left to be done, and only the waiting ends.
  void abort() override {}

 private:
  friend class Progress;
  bool advance(bool blocking, Clock::time_point deadline);
  bool messages_done(bool blocking, Clock::time_point deadline);
  [[noreturn]] void time_out(std::chrono::milliseconds timeout) const;
  void release();

  struct Message {
    int peer;
    bool is_send;
    std::unique_ptr<Transfer> transfer;
  };

  std::shared_ptr<Progress> progress_;
  std::shared_ptr<Wire> wire_;
  std::string what_;
  std::vector<int> ranks_;
  std::chrono::milliseconds timeout_;
  Channel channel_;
  std::vector<Stage> stages_;
  size_t next_stage_ = 0;
  std::vector<Message> messages_;
  std::vector<at::Tensor> kept_;
  bool done_ = false;
  std::exception_ptr failure_;
};

/// The backend of one group. Tensors are contiguous and on the CPU; each call takes exactly one.
class WireBackend : public c10d::Backend {
 public:
  struct Place {
    std::string group;       // name, for errors
    std::vector<int> ranks;  // global ranks, ascending
    int rank;                // position among them
    std::chrono::milliseconds timeout;
  };

  WireBackend(std::shared_ptr<Wire> wire, std::shared_ptr<Progress> progress, Place place);

  const std::string getBackendName() const override { return wire_->name(); }
  void setTimeout(std::chrono::milliseconds timeout) override { place_.timeout = timeout; }

  using Tensors = std::vector<at::Tensor>;
  using Splits = std::vector<int64_t>;
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                      const c10d::ReduceScatterOptions& options) override;
  /// Split sizes count elements of dim 0, as in c10d; empty means equal parts.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in, Splits& out_splits, Splits& in_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  using Work = c10::intrusive_ptr<WireWork>;
  Work make_work(const char* operation, c10d::OpType type, std::chrono::milliseconds timeout);
  Work begin(const char* operation, c10d::OpType type, std::chrono::milliseconds timeout);
  Work begin_message(const char* operation, c10d::OpType type, int peer, int tag);
  c10::intrusive_ptr<c10d::Work> start(const Work& work);
  void add_small_all_reduce(WireWork& work, const at::Tensor& x, c10d::ReduceOp::RedOpType op);
  void add_large_all_reduce(WireWork& work, const at::Tensor& x, c10d::ReduceOp::RedOpType op);
  void check(const at::Tensor& tensor, const char* operation) const;

  std::shared_ptr<Wire> wire_;
  std::shared_ptr<Progress> progress_;
  Place place_;
  int64_t sequence_ = 0;
};

}  // namespace tetra
