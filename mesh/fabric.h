#pragma once
// A transport between ranks: makes c10d backends for sets of ranks. One class per backend in mesh/backend/.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace tetra {

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::string name() const = 0;  // "local", "mpi", "nccl"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;

  /// Collective over `ranks` (ascending global ranks, this rank among them; at least two).
  virtual c10::intrusive_ptr<c10d::Backend> make_group(const std::vector<int>& ranks, const std::string& name,
                                                       std::chrono::milliseconds timeout) = 0;
  /// Makes every rank's present and later waits fail with `message`, which names the rank that it comes from.
  /// Processes: says it on standard error and ends them all.
  virtual void abort(const std::string& message) noexcept = 0;
};

class World;
struct WorldOptions;

/// Runs `body` on `size` threads of this process, each with its own World (backend `local`). When one rank throws, the
/// others' waits end at once, and the first failure is thrown here as Error "rank R: ...". One rank runs on the calling
/// thread without any group. The cores are shared out: each rank's libtorch thread count is set to cores/size, at
/// least 1.
void run_local_ranks(int size, const WorldOptions& options, const std::function<void(World&)>& body);

}  // namespace tetra
