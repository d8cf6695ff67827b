#pragma once
// c10d's face of a LocalChannel. CPU tensors only, one tensor a call.

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mesh/backend/local_channel.h"

namespace tetra {

class LocalBackend : public c10d::Backend {
 public:
  LocalBackend(std::shared_ptr<LocalHub> hub, std::shared_ptr<LocalChannel> channel, int rank, int size,
               std::string name);

  const std::string getBackendName() const override { return "local"; }
  void setTimeout(std::chrono::milliseconds timeout) override { channel_->set_timeout(timeout); }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                                               std::vector<int64_t>& in_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int receiver, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int sender, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  Contribution contribution(LocalOperation operation) const;
  Contribution contribution(LocalOperation operation, const at::Tensor& in, const at::Tensor& out) const;
  c10::intrusive_ptr<c10d::Work> post(Contribution contribution, c10d::OpType type);

  std::shared_ptr<LocalHub> hub_;  // the channel refers to it
  std::shared_ptr<LocalChannel> channel_;
  std::string name_;
};

}  // namespace tetra
