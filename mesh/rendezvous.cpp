#include "mesh/rendezvous.h"

#include <unistd.h>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstring>
#include <numeric>

#include "kernels/error.h"
#include "mesh/backend/cuda_plugin.h"
#include "mesh/backend/gloo.h"
#include "mesh/backend/mpi.h"
#include "mesh/fabric.h"

namespace tetra {
namespace {

constexpr auto kMeetingTimeout = std::chrono::minutes(5);

c10::intrusive_ptr<c10d::Store> open_store(const std::string& address, int port, bool serve, int world_size) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serve;
  options.numWorkers = static_cast<size_t>(world_size);
  options.waitWorkers = false;
  options.timeout = kMeetingTimeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  } catch (const std::exception& error) {
    fail("cannot {} {}:{}, where the ranks are to meet: {}. Is MASTER_ADDR rank 0's machine, and the port free?",
         serve ? "listen at" : "reach", address, port, c10::str(error.what()));
  }
}

/// The store that torchrun-style variables name; rank 0 serves it unless torchrun's agent does.
c10::intrusive_ptr<c10d::Store> torchrun_store(const Place& place) {
  return open_store(place.master_address, place.master_port, place.rank == 0 && !place.agent_store, place.world_size);
}

/// Tells all ranks rank 0's text, of less than 256 bytes.
std::string broadcast_text(Fabric& fabric, const std::string& text) {
  std::vector<int> ranks(fabric.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = fabric.make_group(ranks, "rendezvous", kMeetingTimeout);
  std::vector<at::Tensor> buffer = {at::empty({256}, at::kByte)};
  char* bytes = static_cast<char*>(buffer[0].data_ptr());
  std::strncpy(bytes, text.c_str(), 255);
  group->broadcast(buffer, c10d::BroadcastOptions())->wait();
  return bytes;
}

/// Rank 0 serves a store at a free port and tells the others through MPI.
c10::intrusive_ptr<c10d::Store> store_through_mpi(Fabric& mpi) {
  c10::intrusive_ptr<c10d::Store> store;
  std::string address;
  if (mpi.rank() == 0) {
    char host[200] = "";
    gethostname(host, sizeof host - 1);
    store = open_store(host, 0, true, mpi.size());
    address = fmt::format("{}:{}", host, dynamic_cast<c10d::TCPStore&>(*store).getPort());
  }
  address = broadcast_text(mpi, address);
  const size_t colon = address.rfind(':');
  return store ? store : open_store(address.substr(0, colon), std::stoi(address.substr(colon + 1)), false, mpi.size());
}

std::shared_ptr<Fabric> make_cuda_fabric(const Place& place) {
  const CudaPlugin& cuda = load_cuda_plugin();
  cuda.select_device(place.local_rank);
  if (place.world_size == 1) {
    return nullptr;
  }
  if (place.source == "torchrun") {
    return cuda.make_nccl_fabric({&place, torchrun_store(place), nullptr});
  }
  const std::shared_ptr<Fabric> mpi = make_mpi_fabric(place);
  return cuda.make_nccl_fabric({&place, store_through_mpi(*mpi), mpi});
}

}  // namespace

std::shared_ptr<Fabric> make_fabric(const Place& place, const std::string& device) {
  require(device == "cpu" || device == "cuda", "device '{}' is not known; use cpu or cuda", device);
  if (device == "cuda") {
    return make_cuda_fabric(place);
  }
  if (place.world_size == 1) {
    return nullptr;
  }
  if (place.source == "torchrun") {
    return make_gloo_fabric(place, torchrun_store(place));
  }
  return make_mpi_fabric(place);
}

}  // namespace tetra
