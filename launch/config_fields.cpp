#include "launch/config_fields.h"

#include <algorithm>

#include "kernels/error.h"

namespace tetra {
namespace {

Rule any() {
  return {};
}
Rule at_least(double min) {
  Rule rule;
  rule.min = min;
  return rule;
}
Rule above(double min, double max = std::numeric_limits<double>::infinity()) {
  Rule rule = at_least(min);
  rule.max = max;
  rule.above_min = true;
  return rule;
}
Rule between(double min, double max) {
  Rule rule = at_least(min);
  rule.max = max;
  return rule;
}
/// [0, 1), a list of `count` of them where count is not 0.
Rule fraction(size_t count = 0) {
  Rule rule = between(0, 1);
  rule.below_max = true;
  rule.count = count;
  return rule;
}
Rule one_of(std::vector<std::string> choices) {
  Rule rule;
  rule.choices = std::move(choices);
  return rule;
}
Rule or_null() {
  Rule rule;
  rule.optional = true;
  return rule;
}
Rule json_map() {
  Rule rule = or_null();
  rule.json = true;
  return rule;
}

constexpr double kMaxDegree = 1 << 20;
constexpr double kMaxSeconds = 1e8;

std::vector<Field> run_fields() {
  return {
      {"seed", [](Config& c) { return &c.seed; }, any(), "of every random draw: initial weights, shuffling, dropout"},
      {"device", [](Config& c) { return &c.device; }, one_of({"auto", "cpu", "cuda"}), "where tensors live"},
      {"export", [](Config& c) { return &c.export_dir; }, or_null(),
       "Hugging Face folder written at the end; null: none"},
  };
}

std::vector<Field> model_fields() {
  return {
      {"model.from", [](Config& c) { return &c.model.from; }, or_null(),
       "Hugging Face folder to start from: config.json and *.safetensors; or else model.config"},
      {"model.config", [](Config& c) { return &c.model.config_json; }, json_map(),
       "the fields of a config.json: random initial weights; model.config.FIELD sets one of them"},
  };
}

std::vector<Field> data_fields() {
  return {
      {"data.text", [](Config& c) { return &c.data.text; }, or_null(),
       "files or globs, made tokens with data.tokenizer; or else data.tokens"},
      {"data.tokens", [](Config& c) { return &c.data.tokens; }, or_null(),
       "int32 little-endian file, row-major (steps, global_batch, seq_len), used in order"},
      {"data.labels", [](Config& c) { return &c.data.labels; }, or_null(),
       "beside data.tokens, same shape; -100 is not counted; null: the tokens themselves"},
      {"data.mask", [](Config& c) { return &c.data.mask; }, or_null(), "beside data.tokens, same shape; 0 is padding"},
      {"data.tokenizer", [](Config& c) { return &c.data.tokenizer; }, one_of({"byte"}), "makes tokens of data.text"},
      {"data.seq_len", [](Config& c) { return &c.data.seq_len; }, at_least(1), "tokens in a sequence"},
  };
}

std::vector<Field> train_fields() {
  return {
      {"train.steps", [](Config& c) { return &c.train.steps; }, at_least(1), "optimizer steps"},
      {"train.global_batch_size", [](Config& c) { return &c.train.global_batch_size; }, at_least(1),
       "sequences an optimizer step, over all ranks and micro-batches"},
      {"train.micro_batch_size", [](Config& c) { return &c.train.micro_batch_size; }, at_least(1),
       "sequences a rank and micro-batch"},
      {"train.precision", [](Config& c) { return &c.train.precision; }, one_of({"fp64", "fp32", "bf16", "fp16"}),
       "of parameters and activations; below fp32 with fp32 masters and main gradients"},
      {"train.clip_grad_norm", [](Config& c) { return &c.train.clip_grad_norm; }, above(0),
       "largest global gradient norm; null: no clipping"},
      {"train.clip_grad_value", [](Config& c) { return &c.train.clip_grad_value; }, above(0),
       "largest absolute gradient element; null: no clipping"},
      {"train.fp32_parameters", [](Config& c) { return &c.train.fp32_parameters; }, any(),
       "below fp32, or with offload_optimizer: parameters are kept as masters alone and cast or fetched for each use"},
      {"train.recompute", [](Config& c) { return &c.train.recompute; }, one_of({"none", "selective", "full"}),
       "activations computed again in backward rather than kept"},
      {"train.recompute_layers", [](Config& c) { return &c.train.recompute_layers; }, at_least(0),
       "layers that are, from the first; 0: all"},
      {"train.loss_scale.initial", [](Config& c) { return &c.train.loss_scale.initial; }, above(0),
       "fp16: what the loss is multiplied by at the start"},
      {"train.loss_scale.growth_factor", [](Config& c) { return &c.train.loss_scale.growth_factor; }, above(0),
       "fp16: what the scale grows by, at least 1"},
      {"train.loss_scale.backoff_factor", [](Config& c) { return &c.train.loss_scale.backoff_factor; }, above(0, 1),
       "fp16: what it falls by"},
      {"train.loss_scale.growth_interval", [](Config& c) { return &c.train.loss_scale.growth_interval; }, at_least(1),
       "fp16: steps without overflow before the scale grows"},
      {"train.loss_scale.hysteresis", [](Config& c) { return &c.train.loss_scale.hysteresis; }, at_least(1),
       "fp16: overflows before the scale backs off"},
      {"train.loss_scale.min", [](Config& c) { return &c.train.loss_scale.min; }, above(0), "fp16: the smallest scale"},
      {"train.optimizer.type", [](Config& c) { return &c.train.optimizer.type; }, one_of({"adamw", "sgd", "lion"}),
       "the update rule"},
      {"train.optimizer.lr", [](Config& c) { return &c.train.optimizer.lr; }, at_least(0), "highest learning rate"},
      {"train.optimizer.betas", [](Config& c) { return &c.train.optimizer.betas; }, fraction(2),
       "adamw: decay of the running means of gradient and square; lion: of its two means"},
      {"train.optimizer.eps", [](Config& c) { return &c.train.optimizer.eps; }, at_least(0),
       "adamw: added to the root of the square"},
      {"train.optimizer.weight_decay", [](Config& c) { return &c.train.optimizer.weight_decay; }, at_least(0),
       "on parameters with two or more dims"},
      {"train.optimizer.momentum", [](Config& c) { return &c.train.optimizer.momentum; }, fraction(), "sgd"},
      {"train.optimizer.nesterov", [](Config& c) { return &c.train.optimizer.nesterov; }, any(),
       "sgd: Nesterov's momentum"},
      {"train.scheduler.type", [](Config& c) { return &c.train.scheduler.type; },
       one_of({"constant", "linear", "cosine"}), "the learning rate's way after warm-up"},
      {"train.scheduler.warmup_steps", [](Config& c) { return &c.train.scheduler.warmup_steps; }, at_least(0),
       "steps in which the learning rate rises to train.optimizer.lr"},
      {"train.scheduler.min_lr", [](Config& c) { return &c.train.scheduler.min_lr; }, at_least(0),
       "linear and cosine: learning rate at the end"},
  };
}

std::vector<Field> parallelism_fields() {
  const Rule degree = between(1, kMaxDegree);
  return {
      {"parallelism.pp_size", [](Config& c) { return &c.parallelism.degrees.pp; }, degree, "pipeline stages"},
      {"parallelism.dp_replicate_size", [](Config& c) { return &c.parallelism.degrees.dp_replicate; }, degree,
       "replicas of the model, each with its own data; not given: what -n leaves"},
      {"parallelism.dp_shard_size", [](Config& c) { return &c.parallelism.degrees.dp_shard; }, degree,
       "ranks with their own data that share out parameters, gradients and optimizer state"},
      {"parallelism.cp_size", [](Config& c) { return &c.parallelism.degrees.cp; }, degree,
       "parts of the sequence, attention by ring or all-gather"},
      {"parallelism.sp_size", [](Config& c) { return &c.parallelism.degrees.sp; }, degree,
       "parts of the sequence, attention by all-to-all over heads"},
      {"parallelism.tp_size", [](Config& c) { return &c.parallelism.degrees.tp; }, degree,
       "parts of every large matrix"},
      {"parallelism.ep_size", [](Config& c) { return &c.parallelism.degrees.ep; }, degree,
       "ranks that experts are spread over; lies inside dp_shard x cp x sp"},
      {"parallelism.sequence_parallel", [](Config& c) { return &c.parallelism.sequence_parallel; }, any(),
       "with tp_size above 1: norms and residuals are cut along the sequence"},
      {"parallelism.zero_stage", [](Config& c) { return &c.parallelism.zero_stage; }, between(0, 3),
       "what dp_shard cuts: 1 optimizer state, 2 and gradients, 3 and parameters"},
      {"parallelism.sharding_strategy", [](Config& c) { return &c.parallelism.sharding_strategy; },
       one_of({"by_stage", "NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}),
       "FSDP's name for zero_stage and reshard_after_forward together; by_stage: as those say"},
      {"parallelism.reshard_after_forward", [](Config& c) { return &c.parallelism.reshard_after_forward; }, any(),
       "stage 3: parameters are fetched again for backward; false keeps them from forward to backward"},
      {"parallelism.unit_size", [](Config& c) { return &c.parallelism.unit_size; }, any(),
       "what is fetched and reduced together: layer, model, or the least number of parameters"},
      {"parallelism.prefetch_units", [](Config& c) { return &c.parallelism.prefetch_units; }, at_least(0),
       "stage 3: units fetched ahead of their use; bounds how many are whole at a time"},
      {"parallelism.reduce_gradients", [](Config& c) { return &c.parallelism.reduce_gradients; },
       one_of({"micro_batch", "window"}), "stages 2 and 3: when; window sends less and keeps whole gradients"},
      {"parallelism.reduce_type", [](Config& c) { return &c.parallelism.reduce_type; },
       one_of({"auto", "fp32", "bf16", "fp16"}), "of gradients on the wire between shards; auto: as they are added up"},
      {"parallelism.offload_optimizer", [](Config& c) { return &c.parallelism.offload_optimizer; }, any(),
       "fp32 masters and optimizer state live in host memory"},
      {"parallelism.offload_activations", [](Config& c) { return &c.parallelism.offload_activations; }, any(),
       "what recompute full keeps lives in host memory"},
      {"parallelism.cp_comm_strategy", [](Config& c) { return &c.parallelism.cp_comm_strategy; },
       one_of({"auto", "ring", "allgather", "alltoall"}), "how cp ranks see each other's keys and values"},
      {"parallelism.pipeline_schedule", [](Config& c) { return &c.parallelism.pipeline_schedule; },
       one_of({"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"}), "order of micro-batches in the pipeline"},
      {"parallelism.virtual_stages", [](Config& c) { return &c.parallelism.virtual_stages; }, at_least(1),
       "pipeline stages a rank"},
      {"parallelism.backend", [](Config& c) { return &c.parallelism.backend; },
       one_of({"auto", "local", "mpi", "nccl"}),
       "how ranks talk: local is threads of one process; auto takes what the launcher and device ask for"},
      {"parallelism.timeout_seconds", [](Config& c) { return &c.parallelism.timeout_seconds; }, above(0, kMaxSeconds),
       "longest wait in a collective"},
      {"parallelism.debug_collectives", [](Config& c) { return &c.parallelism.debug_collectives; }, any(),
       "compare what all ranks are about to do before every collective"},
  };
}

std::vector<Field> output_fields() {
  return {
      {"checkpoint.dir", [](Config& c) { return &c.checkpoint.dir; }, or_null(), "folder of checkpoints; null: none"},
      {"checkpoint.every", [](Config& c) { return &c.checkpoint.every; }, at_least(0), "steps between checkpoints"},
      {"checkpoint.keep", [](Config& c) { return &c.checkpoint.keep; }, at_least(1), "newest checkpoints kept"},
      {"checkpoint.resume", [](Config& c) { return &c.checkpoint.resume; }, any(),
       "auto: the newest that is whole; none; or the folder of one"},
      {"checkpoint.background", [](Config& c) { return &c.checkpoint.background; }, any(),
       "written while training goes on"},
      {"checkpoint.verify", [](Config& c) { return &c.checkpoint.verify; }, any(),
       "checksums are compared before a checkpoint is used"},
      {"log.metrics", [](Config& c) { return &c.log.metrics; }, or_null(),
       "JSON lines file, one object a step; null: none"},
      {"log.every", [](Config& c) { return &c.log.every; }, at_least(1), "steps between progress lines"},
  };
}

std::vector<Field> all_fields() {
  std::vector<Field> all;
  for (auto part :
       {run_fields(), model_fields(), data_fields(), train_fields(), parallelism_fields(), output_fields()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::string last_name(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}

std::string parent(const std::string& key) {
  const size_t dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

}  // namespace

const std::vector<Field>& config_fields() {
  static const std::vector<Field> fields = all_fields();
  return fields;
}

const Field* find_field(const std::string& key) {
  const auto& fields = config_fields();
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.key == key; });
  return found == fields.end() ? nullptr : &*found;
}

bool is_section(const std::string& path) {
  return path.empty() || !names_below(path).empty();
}

std::vector<std::string> names_below(const std::string& section) {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> names;
  for (const Field& field : config_fields()) {
    if (field.key.rfind(prefix, 0) != 0) {
      continue;
    }
    const std::string rest = field.key.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t change = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({change, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::string nearest_key(const std::string& key) {
  std::string best;
  size_t best_cost = std::numeric_limits<size_t>::max();
  const auto consider = [&](const std::string& candidate) {
    // A right name in a wrong place is nearer than another name in the same place.
    const bool misplaced = last_name(candidate) == last_name(key);
    const size_t cost = misplaced ? 1 : edit_distance(key, candidate);
    if (cost < best_cost) {
      best = candidate;
      best_cost = cost;
    }
  };
  for (const Field& field : config_fields()) {
    for (std::string section = parent(field.key); !section.empty(); section = parent(section)) {
      consider(section);
    }
    consider(field.key);
  }
  return best;
}

}  // namespace tetra
