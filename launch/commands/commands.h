#pragma once
// The commands, each with what it is told on the command line. They return an exit code (command_line.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/generate.h"

namespace tetra {

struct ConfigArguments {
  std::string file;
  std::vector<std::string> sets;
};

struct TrainArguments {
  ConfigArguments config;
  std::optional<int64_t> ranks;  // -n
};

struct GenerateArguments {
  std::string model_folder;
  GenerateOptions options;
};

struct ConvertArguments {
  std::string from;    // a checkpoint, a folder of checkpoints, or a Hugging Face folder
  std::string to;      // hf | checkpoint
  std::string folder;  // that is written
  std::string dtype;   // fp32 | bf16 | fp16; empty: as stored
  int64_t max_shard_bytes = 5'000'000'000;
};

int run_train(const TrainArguments& arguments);
int run_config(const ConfigArguments& arguments);
int run_env();
int run_generate(const GenerateArguments& arguments);
int run_convert(const ConvertArguments& arguments);

}  // namespace tetra
