#pragma once
// How the sequences of a global batch are shared out over data ranks and micro-batches.

#include <cstdint>

#include "mesh/slice.h"

namespace tetra {

/// One data rank's share. All ranks run the same number of micro-batches, so that collectives inside them meet; a
/// micro-batch may be empty, and is then run on a row that counts nothing.
struct BatchPlan {
  Range rows;             // of the global batch
  int64_t micro_batches;  // the same on all ranks

  Range micro_batch(int64_t index) const;
};

/// Rank `data_rank` of `data_ranks` gets an even share of `global_batch` sequences, in micro-batches of at most
/// `micro_batch_size`. Throws Error when there are fewer sequences than ranks.
BatchPlan plan_batch(int64_t global_batch, int64_t micro_batch_size, int64_t data_ranks, int64_t data_rank);

}  // namespace tetra
