#include "train/options.h"

#include "kernels/error.h"

namespace tetra {
namespace {

at::ScalarType wire_type(const std::string& name) {
  return name == "auto" ? at::ScalarType::Undefined : parse_precision(name).compute;
}

void apply_strategy(const ParallelismConfig& parallelism, ShardingOptions& options) {
  const std::string& name = parallelism.sharding_strategy;
  if (name == "by_stage") {
    return;
  }
  const bool hybrid = name.starts_with("HYBRID_SHARD");
  require(!hybrid || (parallelism.degrees.dp_replicate > 1 && parallelism.degrees.dp_shard > 1),
          "parallelism.sharding_strategy {} shards inside groups that are replicated, but dp_replicate_size is {} and "
          "dp_shard_size {}; set both above 1, or use FULL_SHARD or SHARD_GRAD_OP",
          name, parallelism.degrees.dp_replicate, parallelism.degrees.dp_shard);
  options.zero_stage = name == "NO_SHARD" ? 0 : 3;
  options.reshard_after_forward = name == "FULL_SHARD" || name == "HYBRID_SHARD";
}

}  // namespace

OptimizerOptions optimizer_options(const OptimizerConfig& c) {
  require(c.betas.size() == 2, "train.optimizer.betas has {} values; it needs two", c.betas.size());
  return {c.type, c.betas[0], c.betas[1], c.eps, c.weight_decay, c.momentum, c.nesterov};
}

Schedule learning_rate_schedule(const TrainConfig& config) {
  const auto& s = config.scheduler;
  return {s.type, config.optimizer.lr, s.min_lr, s.warmup_steps, config.steps};
}

LossScaleOptions loss_scale_options(const LossScaleConfig& config) {
  LossScaleOptions options;
  options.initial = config.initial;
  options.growth_factor = config.growth_factor;
  options.backoff_factor = config.backoff_factor;
  options.growth_interval = config.growth_interval;
  options.hysteresis = config.hysteresis;
  options.min_scale = config.min;
  return options;
}

RecomputePolicy recompute_policy(const Config& config) {
  return {parse_recompute(config.train.recompute), config.train.recompute_layers,
          config.parallelism.offload_activations};
}

ShardingOptions sharding_options(const Config& config) {
  const ParallelismConfig& p = config.parallelism;
  ShardingOptions options;
  options.zero_stage = p.zero_stage;
  options.unit_size = p.unit_size;
  options.reshard_after_forward = p.reshard_after_forward;
  options.prefetch_units = p.prefetch_units;
  options.reduce_each_micro_batch = p.reduce_gradients == "micro_batch";
  options.reduce_type = wire_type(p.reduce_type);
  options.values_between_uses = !config.train.fp32_parameters;
  options.offload_state = p.offload_optimizer;
  apply_strategy(p, options);
  return options;
}

}  // namespace tetra
