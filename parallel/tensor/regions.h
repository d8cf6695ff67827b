#pragma once
// The moves between the residual stream and the tensor-parallel regions (Shoeybi et al., "Megatron-LM", 2019; with
// sequence parallelism: Korthikanti et al., 2022). Forward / backward collectives over the tp group:
//   enter  Stream -> Replicated   I->R nothing / all-reduce         V->R all-gather / reduce-scatter
//   leave  Partial -> Stream      P->I all-reduce / nothing         P->V reduce-scatter / all-gather
//   whole  Stream -> Stream of all tokens, for use by all ranks alike (I->I; V->I all-gather / slice)

#include <string>

#include "parallel/tensor/spmd.h"

namespace tetra {

class Group;

/// Tensor parallelism as a model needs to know it.
struct TensorParallel {
  const Group& group;
  bool sequence_parallel = false;  // ignored on a group of one

  bool cuts_tokens() const;
  int64_t size() const;
  int64_t rank() const;
};

/// `site` names the caller in counters and errors; ".forward" or ".backward" is added.
Replicated enter(const Stream& x, const TensorParallel& tp, const std::string& site);
Stream leave(const Partial& x, const TensorParallel& tp, const std::string& site);
/// leave() with a fixed bias [H] added once, after the reduction.
Stream leave(const Partial& x, const at::Tensor& bias, const TensorParallel& tp, const std::string& site);
/// Varying over the last dim -> the whole tensor on every rank, without a gradient: [T, V/tp] -> [T, V].
at::Tensor gather_last_dim(const Varying& x, int64_t global_size, const TensorParallel& tp, const std::string& site);

/// Element-wise sum of two streams.
Stream operator+(const Stream& a, const Stream& b);

/// The tokens of the flattened [T] that this rank's stream holds: all of them, or its part.
struct TokenRange {
  int64_t begin, end;  // real tokens
  int64_t padded;      // rows of the stream's tensor
};
TokenRange stream_tokens(int64_t tokens, const TensorParallel& tp);

}  // namespace tetra
