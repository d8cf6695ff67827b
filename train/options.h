#pragma once
// From what a configuration says to what the parts of a training run take. Each throws Error for what cannot work.

#include <cstdint>

#include "parallel/data/model_state.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/schedule.h"
#include "parallel/recompute/policy.h"
#include "train/config.h"

namespace tetra {

OptimizerOptions optimizer_options(const OptimizerConfig& config);

Schedule learning_rate_schedule(const TrainConfig& config);

LossScaleOptions loss_scale_options(const LossScaleConfig& config);

RecomputePolicy recompute_policy(const Config& config);

/// sharding_strategy is resolved: NO_SHARD is stage 0, FULL_SHARD and HYBRID_SHARD stage 3, SHARD_GRAD_OP and
/// HYBRID_SHARD_ZERO2 stage 3 without reshard_after_forward; HYBRID asks for both dp axes.
ShardingOptions sharding_options(const Config& config);

}  // namespace tetra
