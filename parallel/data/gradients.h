#pragma once
// Main gradients, summed over micro-batches and over the data-parallel ranks in buckets while backward runs
// (Li et al., "PyTorch Distributed", VLDB 2020), then completed over tp.

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/collectives.h"
#include "parallel/parameter.h"

namespace tetra {

class Group;

struct GradientOptions {
  int64_t bucket_bytes = 25 << 20;  // results do not depend on it
};

/// Owns the main gradients of a parameter set. Autograd's gradient of each micro-batch is ADDED to the main gradient as
/// soon as it is ready, and freed. In the last micro-batch of a window each bucket is sent on its way as soon as its
/// last gradient is in. Every reduction is a sum: the loss carries the division.
class GradientReducer {
 public:
  GradientReducer(ParameterSet& parameters, const Group& grad_group, const Group& tp_group, GradientOptions options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Gives the main gradients' memory back, once the optimizer has read them: it is made anew, bucket by bucket, while
  /// the next backward frees activations. Leaving it out costs just memory.
  void release();

  /// Call before each backward of the window; `first` and `last` say which micro-batch it is.
  void begin_micro_batch(bool first, bool last);

  /// After the window's last backward, on every rank: waits for the buckets, gives parameters that got no gradient
  /// zeros, and sums over tp what is partial there. Collective over both groups.
  void finish();

 private:
  struct Bucket;
  class Hook;

  void gradient_ready(size_t index);
  void launch_ready_buckets();
  void sum_partials_over_tp();
  void make_buckets(int64_t bucket_bytes);
  void give_memory(Bucket& bucket);

  ParameterSet& parameters_;
  const Group& grad_group_;
  const Group& tp_group_;
  std::vector<Parameter*> order_;  // as backward finishes them: last parameter first
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  // of each in order_
  std::vector<bool> touched_;      // got a gradient in this window
  size_t next_bucket_ = 0;         // buckets leave in this order, on every rank alike
  bool last_ = false;
};

}  // namespace tetra
