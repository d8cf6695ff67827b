// Times collectives of 16 MiB fp32 on thread ranks: the local backend beside Gloo as libtorch offers it, in turn within
// one process, so that a machine which slows down slows both sides.
//   collectives_bench [MiB] [rounds]
// The size is that of the larger tensor of the operation (the output of all_gather, the input of reduce_scatter). Time
// is from all ranks standing at a barrier to the last one done; the median over the rounds counts. Needs the include
// folder mesh/backend/gloo_shim.

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "mesh/backend/local.h"

namespace {

using Backend = c10::intrusive_ptr<c10d::Backend>;
using Clock = std::chrono::steady_clock;

struct Buffers {
  at::Tensor whole;  // the full size on every rank
  at::Tensor other;
  at::Tensor part;  // whole / ranks
};

struct Operation {
  const char* name;
  std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&, Buffers&)> start;
};

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"all_reduce",
       [](c10d::Backend& backend, Buffers& b) {
         std::vector<at::Tensor> tensors = {b.whole};
         return backend.allreduce(tensors, c10d::AllreduceOptions());
       }},
      {"all_gather", [](c10d::Backend& backend,
                        Buffers& b) { return backend._allgather_base(b.whole, b.part, c10d::AllgatherOptions()); }},
      {"reduce_scatter",
       [](c10d::Backend& backend, Buffers& b) {
         return backend._reduce_scatter_base(b.part, b.whole, c10d::ReduceScatterOptions());
       }},
      {"all_to_all",
       [](c10d::Backend& backend, Buffers& b) {
         std::vector<int64_t> equal;
         return backend.alltoall_base(b.other, b.whole, equal, equal, c10d::AllToAllOptions());
       }},
  };
  return all;
}

Backend make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks) {
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(5));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Seconds of one call on all ranks, for each round.
class Timer {
 public:
  explicit Timer(int ranks) : start_(ranks), end_(ranks) {}

  void time(int rank, const std::function<void()>& call, std::vector<double>& seconds) {
    start_.arrive_and_wait();
    const auto begin = Clock::now();
    call();
    end_.arrive_and_wait();
    if (rank == 0) {
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  }

 private:
  std::barrier<> start_;
  std::barrier<> end_;
};

struct Result {
  std::vector<double> local;
  std::vector<double> gloo;
};

std::vector<Result> measure(int ranks, int64_t elements, int rounds) {
  const auto fabrics = tetra::make_local_fabrics(ranks);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) {
    members.push_back(r);
  }
  std::vector<Result> results(operations().size());
  Timer timer(ranks);
  const auto run = [&](int rank) {
    at::set_num_threads(1);
    const Backend local = fabrics[static_cast<size_t>(rank)]->make_group(members, "bench", std::chrono::minutes(5));
    const Backend gloo = make_gloo(store, rank, ranks);
    Buffers buffers{at::ones({elements}), at::ones({elements}), at::ones({elements / ranks})};
    for (int round = -1; round < rounds; ++round) {  // the first one warms up
      for (size_t o = 0; o < operations().size(); ++o) {
        const auto time = [&](const Backend& backend, std::vector<double>& seconds) {
          buffers.whole.zero_();
          timer.time(
              rank, [&] { operations()[o].start(*backend, buffers)->wait(); }, seconds);
        };
        Result unused;
        Result& result = round < 0 ? unused : results[o];
        time(local, result.local);
        time(gloo, result.gloo);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back(run, r);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t mib = count > 1 ? std::atoll(arguments[1]) : 16;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 15;
  if (mib < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: collectives_bench [MiB >= 1] [rounds >= 1]\n");
    return 2;
  }
  const double bytes = static_cast<double>(mib << 20);
  std::printf("%lld MiB fp32, %u cores, medians of %d rounds; GB/s = size / time\n", static_cast<long long>(mib),
              std::thread::hardware_concurrency(), rounds);
  std::printf("%5s  %-14s %10s %10s %10s %10s %8s\n", "ranks", "operation", "local ms", "GB/s", "gloo ms", "GB/s",
              "ratio");
  for (int ranks : {2, 4, 8}) {
    const std::vector<Result> results = measure(ranks, (mib << 20) / 4, rounds);
    for (size_t o = 0; o < results.size(); ++o) {
      const double local = median(results[o].local);
      const double gloo = median(results[o].gloo);
      std::printf("%5d  %-14s %10.2f %10.2f %10.2f %10.2f %8.2f\n", ranks, operations()[o].name, 1e3 * local,
                  bytes / local / 1e9, 1e3 * gloo, bytes / gloo / 1e9, gloo / local);
    }
  }
  return 0;
}
