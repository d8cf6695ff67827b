#include "mesh/fabric.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include <ATen/Parallel.h>

#include "kernels/error.h"
#include "mesh/backend/local.h"
#include "mesh/world.h"

namespace tetra {
namespace {

void run_rank(const std::shared_ptr<LocalFabric>& fabric, int threads, const WorldOptions& options,
              const std::function<void(World&)>& body) noexcept {
  const auto report = [&](const char* what) { fabric->abort(fmt::format("rank {}: {}", fabric->rank(), what)); };
  try {
    at::set_num_threads(threads);
    World world(options, fabric);
    body(world);
  } catch (const std::exception& e) {
    report(e.what());
  } catch (...) {
    report("an exception that is not a std::exception");
  }
}

}  // namespace

void run_local_ranks(int size, const WorldOptions& options, const std::function<void(World&)>& body) {
  require(size >= 1, "{} ranks asked for; at least 1 is needed", size);
  check_degrees(options.degrees, size);
  if (size == 1) {
    World world(options, nullptr);
    return body(world);
  }
  const int cores = at::get_num_threads();
  const auto fabrics = make_local_fabrics(size);
  std::vector<std::thread> ranks;
  for (const auto& fabric : fabrics) {
    try {
      ranks.emplace_back([&, threads = std::max(1, cores / size)] { run_rank(fabric, threads, options, body); });
    } catch (const std::exception& e) {
      fabric->abort(fmt::format("rank {}: its thread cannot start: {}", fabric->rank(), e.what()));
      break;
    }
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  at::set_num_threads(cores);  // libtorch keeps the last count set by any thread for threads made later
  if (const auto failure = fabrics.front()->failure()) {
    throw Error(*failure);
  }
}

}  // namespace tetra
