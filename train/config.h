#pragma once
// What a training run is told: plain data, filled from YAML, --set and the environment by launch/, or by a program.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/degrees.h"

namespace tetra {

struct ModelSource {
  std::string from;         // folder in Hugging Face's layout, or
  std::string config_json;  // the text of a config.json (the YAML's `config:` map, as JSON): random initial weights
};

struct DataConfig {
  std::vector<std::string> text;  // files or globs, tokenized with `tokenizer`; or
  std::string tokens;             // int32 little-endian, row-major (steps, global_batch, seq_len), used in order
  std::string labels;             // beside tokens, same shape; -100 is not counted
  std::string mask;               // beside tokens, same shape; 0 is padding
  std::string tokenizer = "byte";
  int64_t seq_len = 256;
};

struct OptimizerConfig {
  std::string type = "adamw";  // adamw | sgd | lion
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;  // applies to parameters with two or more dims
  double momentum = 0.0;      // sgd
  bool nesterov = false;      // sgd
};

struct SchedulerConfig {
  std::string type = "constant";  // constant | linear | cosine
  int64_t warmup_steps = 0;
  double min_lr = 0.0;
};

/// Of fp16: the loss is multiplied by a scale that falls when a gradient overflows and rises after a row of good steps.
struct LossScaleConfig {
  double initial = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // good steps in a row before the scale grows
  int64_t hysteresis = 1;          // overflows before it backs off
  double min = 1.0;
};

struct TrainConfig {
  int64_t steps = 100;
  int64_t global_batch_size = 32;  // sequences an optimizer step
  int64_t micro_batch_size = 4;    // sequences a rank and micro-batch
  std::string precision = "fp32";  // fp64 | fp32 | bf16 | fp16
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  bool fp32_parameters = false;  // below fp32: keep parameters between uses in fp32 alone, cast for each use
  LossScaleConfig loss_scale;
  std::optional<double> clip_grad_norm = 1.0;  // null: no clipping
  std::optional<double> clip_grad_value;       // null: no clipping
  std::string recompute = "none";              // none | selective | full
  int64_t recompute_layers = 0;                // how many, from the first; 0: all
};

struct ParallelismConfig {
  Degrees degrees;
  bool sequence_parallel = false;
  int64_t zero_stage = 3;
  std::string sharding_strategy = "by_stage";    // or FSDP's name for stage and reshard_after_forward
  bool reshard_after_forward = true;             // stage 3: values are fetched again for backward
  std::string unit_size = "layer";               // layer | model | least number of parameters
  int64_t prefetch_units = 1;                    // stage 3: units fetched ahead
  std::string reduce_gradients = "micro_batch";  // stages 2 and 3: micro_batch | window
  std::string reduce_type = "auto";              // auto | fp32 | bf16 | fp16: of gradients on the wire
  bool offload_optimizer = false;                // masters and optimizer state in host memory
  bool offload_activations = false;              // what recompute keeps, in host memory
  std::string cp_comm_strategy = "ring";
  std::string pipeline_schedule = "1f1b";
  int64_t virtual_stages = 1;
  std::string backend = "auto";    // auto | local | mpi | nccl
  double timeout_seconds = 600.0;  // of every collective
  bool debug_collectives = false;  // compare fingerprints before every collective
};

struct CheckpointConfig {
  std::string dir;
  int64_t every = 0;
  int64_t keep = 2;
  std::string resume = "auto";  // auto | none | a checkpoint's folder
  bool background = true;       // written while training goes on
  bool verify = true;           // checksums are compared before a checkpoint is used
};

struct LogConfig {
  std::string metrics;  // JSON lines file; empty: none
  int64_t every = 1;    // steps between progress lines
};

struct Config {
  uint64_t seed = 42;
  ModelSource model;
  DataConfig data;
  TrainConfig train;
  ParallelismConfig parallelism;
  CheckpointConfig checkpoint;
  LogConfig log;
  std::string export_dir;       // `export:` Hugging Face folder written at the end; empty: none
  std::string device = "auto";  // auto | cpu | cuda
};

}  // namespace tetra
