#include "cuda/nccl_fabric.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "kernels/error.h"
#include "mesh/backend/cuda_plugin.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"

namespace tetra::cuda {
namespace {

class NcclFabric : public Fabric {
 public:
  explicit NcclFabric(const NcclRequest& request)
      : place_(*request.place),
        store_(request.store),
        launcher_(request.launcher),
        device_(c10::DeviceType::CUDA, c10::cuda::current_device()) {}

  std::string name() const override { return "nccl"; }
  int rank() const override { return place_.rank; }
  int size() const override { return place_.world_size; }
  // MPI knows the machine's ranks also where its launcher's variables do not tell.
  int local_rank() const override { return launcher_ ? launcher_->local_rank() : place_.local_rank; }
  int local_size() const override { return launcher_ ? launcher_->local_size() : place_.local_size; }

  c10::intrusive_ptr<c10d::Backend> make_group(const std::vector<int>& ranks, const std::string& name,
                                               std::chrono::milliseconds timeout) override {
    const auto position = std::find(ranks.begin(), ranks.end(), place_.rank);
    require(position != ranks.end(), "group '{}': rank {} is not among its ranks {}", name, place_.rank,
            fmt::join(ranks, ", "));
    // Groups of one name stand side by side on different ranks, and may be made again: each has its part of the store.
    const std::string key = fmt::format("{}:{}", name, fmt::join(ranks, ","));
    const std::string prefix = fmt::format("{}#{}", key, made_[key]++);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    options->group_name = name;
    options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
                                                             static_cast<int>(position - ranks.begin()),
                                                             static_cast<int>(ranks.size()), options);
    group->setBoundDeviceId(device_);
    return group;
  }

  void abort(const std::string& message) noexcept override {
    if (aborted_.exchange(true)) {
      return;
    }
    if (launcher_) {
      launcher_->abort(message);
    }
    std::fflush(stdout);
    std::fprintf(stderr, "rank %d: %s\n", place_.rank, message.c_str());
    std::fflush(stderr);
    std::_Exit(1);  // torchrun ends the others when one of its processes fails
  }

 private:
  const Place place_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<Fabric> launcher_;
  const c10::Device device_;
  std::map<std::string, int> made_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

int device_count() {
  return c10::cuda::device_count();
}

void select_device(int local_rank) {
  const int count = device_count();
  require(count > 0,
          "a GPU was asked for, but CUDA sees none; is there one, with its driver, and what is "
          "CUDA_VISIBLE_DEVICES? Or use the CPU");
  require(local_rank >= 0 && local_rank < count,
          "local rank {} needs a GPU of its own, but this machine shows {}; start at most {} ranks on it", local_rank,
          count, count);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(local_rank));
}

std::shared_ptr<Fabric> make_nccl_fabric(const NcclRequest& request) {
  return std::make_shared<NcclFabric>(request);
}

}  // namespace tetra::cuda
