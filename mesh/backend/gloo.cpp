#include "mesh/backend/gloo.h"

#include <ATen/ops/from_blob.h>
#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "kernels/error.h"
#include "mesh/backend/wire_backend.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"

// The headers in gloo_shim were checked against these.
static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11);

namespace tetra {
namespace {

using Gloo = c10d::ProcessGroupGloo;

/// libtorch's name or address of the network interface to use.
std::shared_ptr<gloo::transport::Device> make_device(const std::string& master_address) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    return Gloo::createDeviceForInterface(interface);
  }
  const bool one_machine = master_address == "localhost" || master_address.starts_with("127.");
  return one_machine ? Gloo::createDeviceForHostname("127.0.0.1") : Gloo::createDefaultDevice();
}

/// Gloo's own thread moves the bytes, so a message gets on while nobody looks at it.
class GlooTransfer : public Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  bool test() override { return done_; }

  bool wait(Clock::time_point deadline) override {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      work_->wait(std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception& error) {
      if (Clock::now() >= deadline) {
        return false;
      }
      fail("the connection is lost ({}); has that rank ended, or does it disagree on the size of this operation?",
           error.what());
    }
    done_ = true;
    return true;
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  bool done_ = false;
};

class GlooWire : public Wire {
 public:
  explicit GlooWire(c10::intrusive_ptr<Gloo> gloo) : gloo_(std::move(gloo)) {}

  std::string name() const override { return "gloo"; }
  bool can_poll() const override { return false; }

  std::unique_ptr<Transfer> send(const void* data, int64_t bytes, int peer, Channel channel) override {
    return post([&](std::vector<at::Tensor>& view) { return gloo_->send(view, peer, tag(channel)); },
                const_cast<void*>(data), bytes);
  }

  std::unique_ptr<Transfer> receive(void* data, int64_t bytes, int peer, Channel channel) override {
    return post([&](std::vector<at::Tensor>& view) { return gloo_->recv(view, peer, tag(channel)); }, data, bytes);
  }

 private:
  template <typename Operation>
  std::unique_ptr<Transfer> post(const Operation& operation, void* data, int64_t bytes) {
    // An empty message travels as one byte that nobody reads.
    std::vector<at::Tensor> view = {
        at::from_blob(bytes > 0 ? data : &nothing_, {std::max<int64_t>(bytes, 1)}, at::TensorOptions(at::kByte))};
    try {
      return std::make_unique<GlooTransfer>(operation(view));
    } catch (const std::exception& error) {
      fail("a connection is lost ({}); has a rank ended?", error.what());
    }
  }

  static int tag(Channel channel) {
    constexpr int64_t kTags = int64_t{1} << 30;
    require(channel.collective || channel.number < kTags, "tag {} is too large; use tags below {}", channel.number,
            kTags);
    return static_cast<int>(channel.number % kTags * 2 + (channel.collective ? 1 : 0));
  }

  c10::intrusive_ptr<Gloo> gloo_;
  char nothing_ = 0;
};

class GlooFabric : public Fabric {
 public:
  GlooFabric(const Place& place, c10::intrusive_ptr<c10d::Store> store) : place_(place), store_(std::move(store)) {}

  std::string name() const override { return "gloo"; }
  int rank() const override { return place_.rank; }
  int size() const override { return place_.world_size; }
  int local_rank() const override { return place_.local_rank; }
  int local_size() const override { return place_.local_size; }

  c10::intrusive_ptr<c10d::Backend> make_group(const std::vector<int>& ranks, const std::string& name,
                                               std::chrono::milliseconds timeout) override {
    const auto place = std::find(ranks.begin(), ranks.end(), place_.rank);
    require(place != ranks.end() && ranks.size() > 1,
            "group '{}': its ranks are {}; needed: at least two, rank {} among them", name, fmt::join(ranks, ", "),
            place_.rank);
    const int rank = static_cast<int>(place - ranks.begin());
    auto wire = std::make_shared<GlooWire>(connect(ranks, rank, name, timeout));
    return c10::make_intrusive<WireBackend>(std::move(wire), progress_, WireBackend::Place{name, ranks, rank, timeout});
  }

  void abort(const std::string& message) noexcept override {
    if (aborted_.exchange(true)) {
      return;
    }
    std::fflush(stdout);
    std::fprintf(stderr, "tetra: error: %s\n", message.c_str());
    std::fflush(stderr);
    std::_Exit(1);  // the others' connections to this rank close, and their waits fail
  }

 private:
  c10::intrusive_ptr<Gloo> connect(const std::vector<int>& ranks, int rank, const std::string& name,
                                   std::chrono::milliseconds timeout) {
    // Groups of one name stand side by side on different ranks, and may be made again: each has its part of the store.
    const std::string key = fmt::format("{}:{}", name, fmt::join(ranks, ","));
    const auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}#{}", key, made_[key]++), store_);
    auto options = Gloo::Options::create(timeout);
    options->group_name = name;
    options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    try {
      options->devices.push_back(make_device(place_.master_address));
      return c10::make_intrusive<Gloo>(store, rank, static_cast<int>(ranks.size()), options);
    } catch (const std::exception& error) {
      fail(
          "group '{}': ranks {} do not all connect: {}. Is one of them missing? GLOO_SOCKET_IFNAME names the network "
          "interface to use",
          name, fmt::join(ranks, ", "), error.what());
    }
  }

  const Place place_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>(false);
  std::map<std::string, int> made_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

std::shared_ptr<Fabric> make_gloo_fabric(const Place& place, const c10::intrusive_ptr<c10d::Store>& store) {
  return std::make_shared<GlooFabric>(place, store);
}

}  // namespace tetra
