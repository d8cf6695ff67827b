#pragma once

#include "parallel/pipeline/schedule.h"

namespace tetra {

/// The zbv schedule (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024): two stages a rank, rank r
/// holding stages r and 2*ranks-1-r, so that a micro-batch turns at the last rank and ends where it began. The lists
/// are written down from a run of a clock in which forward, input and weight gradient take one tick each and a rank
/// holds 2*ranks activations of a stage at most, as many as 1f1b's ranks.
Schedule zero_bubble_v(int64_t ranks, int64_t micro_batches);

}  // namespace tetra
