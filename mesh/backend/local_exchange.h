#pragma once
// One collective between thread ranks: what every rank brought, and the moving and adding of the data, cut into pieces
// that any of the ranks' threads can work on. Nobody copies into a staging buffer: pieces read and write the ranks'
// own tensors.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include "mesh/collectives.h"

namespace tetra {

enum class LocalOperation { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier, message };

/// What one rank brings to a collective. Counts are elements; `in` and `out` may be the same memory where the operation
/// works in place.
struct Contribution {
  LocalOperation operation = LocalOperation::barrier;
  at::ScalarType type = at::kByte;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t in_count = 0;
  int64_t out_count = 0;
  std::vector<int64_t> in_splits;  // all_to_all: elements for, and from, each rank
  std::vector<int64_t> out_splits;
  std::vector<c10::Storage> keep;  // the memory must outlive the operation even when its owner fails and unwinds
  std::string name;                // "receive", for errors: what the caller calls the operation
  std::string site;
  std::string group;
};

class Exchange {
 public:
  enum class Stage : int { open, full, complete, failed };

  /// `ranks`: the global ranks that take part; the index into it is called a party.
  explicit Exchange(std::vector<int> ranks);

  int size() const { return static_cast<int>(ranks_.size()); }
  bool has(int party) const { return present_[static_cast<size_t>(party)]; }

  // All below but the pieces are guarded by the channel's mutex.

  /// Returns true when this was the last one missing.
  bool add(int party, Contribution contribution);
  /// Compares what the parties brought and cuts the work into pieces. Returns what does not match, or nothing.
  std::string prepare();
  /// Bytes read and written altogether.
  int64_t work_bytes() const { return work_bytes_; }
  /// "all_reduce 'row_parallel.forward'", from whoever came first.
  std::string title() const;
  std::string group() const;
  /// "ranks 0, 1 came; ranks 2, 3 did not"
  std::string attendance() const;
  /// Lets go of the tensors.
  std::vector<c10::Storage> release();

  // Pieces: any thread, once the exchange is full.

  bool has_piece(int owner) const;
  bool has_piece() const;
  bool all_done() const { return done_.load(std::memory_order_acquire) == total_; }
  /// Works on the pieces of `owner` until none is left or the exchange has stopped.
  void work_on(int owner);
  /// The same for all owners, those of `first` first.
  void work_on_all(int first);

  std::atomic<Stage> stage = Stage::open;
  std::atomic<bool> stopped = false;  // failed or given up: no new piece is begun
  int active = 0;                     // threads at work on pieces
  bool releasing = false;             // all pieces are done, a thread lets go of the tensors
  int withdrawn = -1;                 // the party that gave up while an exception passed through it
  std::string error;
  std::condition_variable changed;

 private:
  struct Todo {
    int64_t begin = 0;  // elements that this owner's pieces cover
    int64_t end = 0;
    int64_t pieces = 0;
    std::atomic<int64_t> next = 0;
  };

  std::string mismatch() const;
  std::string describe(int party) const;
  void cut();
  void copy(void* to, const void* from, int64_t bytes) const;
  void run_piece(int owner, int64_t begin, int64_t end);
  void reduce_everywhere(int64_t begin, int64_t end);
  void gather_from(int source, int64_t begin, int64_t end);
  void scatter_sum_to(int target, int64_t begin, int64_t end);
  void collect_for(int target, int64_t begin, int64_t end);
  void spread_from_root(int64_t begin, int64_t end);

  std::vector<int> ranks_;
  std::vector<Contribution> contributions_;
  std::vector<bool> present_;
  int first_ = 0;
  int missing_;
  std::unique_ptr<Todo[]> todo_;
  int64_t total_ = 0;
  int64_t element_size_ = 1;
  int64_t work_bytes_ = 0;
  bool streaming_ = false;
  std::atomic<int64_t> done_ = 0;
};

}  // namespace tetra
