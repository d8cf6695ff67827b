#pragma once
// Every message between ranks goes through these functions. Each one says what it consumes and produces, counts calls
// and bytes (ledger.h), and in debug mode compares fingerprints over the group before anything is sent.
//
// `site` names the place in the code that calls ("row_parallel.forward"): it appears in errors and counters, and tests
// drop a site to see that it matters. All functions are collective over `group`, demand contiguous tensors (an Error,
// never a silent copy), and are no-ops or plain copies on a group of size 1. Sums of bf16 and fp16 accumulate in fp32
// and add in rank order, so results are equal to the last bit on every rank and run. Errors: tetra::Error on a bad
// argument, on time-out, and with the failing rank's message when another rank failed.
//
// SPMD types along an axis: R replicated (its gradient is partial), I invariant (gradient invariant), V varying,
// P partial sum. all_reduce: P->I or P->R; all_gather: V->R or V->I; reduce_scatter: P->V; all_to_all: V->V.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tetra {

class Group;
enum class ReduceOp { sum, max, min };

/// A collective under way. Must be waited for before its tensors are read, written or freed.
class Pending {
 public:
  struct State;
  Pending();
  explicit Pending(std::unique_ptr<State> state);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  /// Waits, without throwing. While an exception passes through it gives the operation up instead (c10d's Work::abort):
  /// the other ranks may be waiting for this one.
  ~Pending();

  void wait();

 private:
  std::unique_ptr<State> state_;
};

/// P->I: `x` becomes the reduction over all ranks, in place. Sent: 2*bytes(x)*(n-1)/n.
void all_reduce(at::Tensor& x, const Group& group, std::string_view site, ReduceOp op = ReduceOp::sum);
Pending all_reduce_async(at::Tensor& x, const Group& group, std::string_view site, ReduceOp op = ReduceOp::sum);

/// V->R: `out` holds the ranks' `in` one after another; out.numel() == n*in.numel(). Sent: bytes(out)*(n-1)/n.
void all_gather(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site);
Pending all_gather_async(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site);

/// P->V: `out` is this rank's n-th part of the sum of all `in`; in.numel() == n*out.numel(). Sent: bytes(in)*(n-1)/n.
void reduce_scatter(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site);
Pending reduce_scatter_async(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site);

/// V->V: part i of `in` goes to rank i. Split sizes count elements of dim 0 of `in` and `out`; empty means equal parts.
/// Sent: bytes(in) but for the part that stays; bytes(in)*(n-1)/n for equal parts.
void all_to_all(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site,
                const std::vector<int64_t>& out_splits = {}, const std::vector<int64_t>& in_splits = {});
Pending all_to_all_async(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site,
                         const std::vector<int64_t>& out_splits = {}, const std::vector<int64_t>& in_splits = {});

/// R: `x` of `root` (position in the group) overwrites the others' `x`. Sent: bytes(x) by the root, nothing by the
/// others.
void broadcast(at::Tensor& x, int root, const Group& group, std::string_view site);

/// Point to point, `peer` is a position in the group; messages between a pair arrive in order for each tag. Waiting
/// for a send may last until the peer has posted its receive: post both before waiting for either. Sent: bytes(x).
Pending send_async(const at::Tensor& x, int peer, const Group& group, std::string_view site, int tag = 0);
Pending receive_async(at::Tensor& x, int peer, const Group& group, std::string_view site, int tag = 0);

/// Returns when all ranks have arrived.
void barrier(const Group& group, std::string_view site);

/// The ranks' strings (any bytes), in rank order, on every rank.
std::vector<std::string> all_gather_strings(const std::string& text, const Group& group, std::string_view site);

}  // namespace tetra
