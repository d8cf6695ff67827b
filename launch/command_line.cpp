#include "launch/command_line.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "kernels/error.h"
#include "launch/commands/commands.h"
#include "launch/config_reader.h"
#include "launch/report_error.h"
#include "launch/scalar.h"

namespace tetra {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;

/// What was chosen on the command line: its exit code when run.
using Action = std::function<int()>;

/// CLI11 would read 010 as 8 and wrap -1 around.
CLI::Validator whole(int64_t min, int64_t max) {
  return CLI::Validator(
      [=](const std::string& text) {
        const auto value = whole_number(text);
        const bool plain = value && std::to_string(*value) == text;
        return plain && *value >= min && *value <= max
                   ? std::string()
                   : fmt::format("'{}' is not an integer from {} to {}", text, min, max);
      },
      "");
}

void add_config_arguments(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("CONFIG", arguments.file, "YAML file; docs/configuration.md lists the keys")->required();
  command.add_option("--set", arguments.sets, "set a key, as in --set train.steps=10; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_train(CLI::App& app, TrainArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("train", "Train a model");
  command->footer(
      "With -n, or without a launcher: thread ranks in this process. Started by mpirun, srun or torchrun: one rank,\n"
      "its place read from the variables they set.");
  add_config_arguments(*command, arguments.config);
  command->add_option("-n", arguments.ranks, "thread ranks; default: the product of the parallelism degrees")
      ->type_name("N")
      ->check(whole(1, 1024));
  command->callback([&] { action = [&] { return run_train(arguments); }; });
}

void add_config(CLI::App& app, ConfigArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("config", "Check a configuration and print it in full, as YAML");
  add_config_arguments(*command, arguments);
  command->callback([&] { action = [&] { return run_config(arguments); }; });
}

void add_generate(CLI::App& app, GenerateArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a trained model");
  GenerateOptions& options = arguments.options;
  command->add_option("MODEL_DIR", arguments.model_folder, "Hugging Face folder, as `export:` writes it")->required();
  command->add_option("--prompt", options.prompt, "text to continue")->required()->type_name("TEXT");
  command->add_option("--max-new-tokens", options.max_new_tokens, "tokens to add")
      ->capture_default_str()
      ->check(whole(0, kMaxTokens));
  command->add_option("--temperature", options.temperature, "0 takes the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--top-k", options.top_k, "draw from so many likeliest tokens; 0: from all")
      ->capture_default_str()
      ->check(whole(0, kMaxTokens));
  command->add_option("--seed", options.seed, "of the draws")
      ->capture_default_str()
      ->check(whole(0, std::numeric_limits<int64_t>::max()));
  command->callback([&] { action = [&] { return run_generate(arguments); }; });
}

/// "5GB", "500MB", "2GiB", or bytes.
void set_size(const std::string& text, int64_t& bytes) {
  const auto parsed = size_in_bytes(text);
  if (!parsed || *parsed < 1) {
    throw CLI::ValidationError("--max-shard-size", "'" + text + "' is not a size; write 5GB, 500MB, 2GiB or bytes");
  }
  bytes = *parsed;
}

void add_convert(CLI::App& app, ConvertArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("convert", "Convert between checkpoints and Hugging Face folders");
  command->footer(
      "--to hf: FROM is a checkpoint (DIR/step-00000100) or the folder of checkpoints, of which the newest whole one "
      "is\n"
      "taken. The folder gets config.json and model.safetensors, or shards and an index. Every file of the checkpoint "
      "is\n"
      "verified first.\n"
      "--to checkpoint: FROM is a Hugging Face folder. The folder gets step-00000000 with the weights alone, in fp32 "
      "(fp64\n"
      "where they are stored so), from which training starts.");
  command->add_option("FROM", arguments.from, "what to convert")->required();
  command->add_option("DIR", arguments.folder, "folder to write")->required();
  command->add_option("--to", arguments.to, "hf or checkpoint")->required()->check(CLI::IsMember({"hf", "checkpoint"}));
  command->add_option("--dtype", arguments.dtype, "type of the weights in the Hugging Face folder; default: as stored")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command
      ->add_option_function<std::string>(
          "--max-shard-size", [&](const std::string& text) { set_size(text, arguments.max_shard_bytes); },
          "largest file, as 5GB, 500MB or 2GiB; a larger tensor has a file of its own")
      ->type_name("SIZE")
      ->default_str("5GB");
  command->callback([&] { action = [&] { return run_convert(arguments); }; });
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// CLI11's messages, on one line with what to do.
int usage_error(const CLI::App& app, const CLI::ParseError& error, const std::string& first) {
  const std::vector<std::string> names = command_names(app);
  if (!first.empty() && first[0] != '-' && std::find(names.begin(), names.end(), first) == names.end()) {
    report_error(
        fmt::format("{} is not a command; use {} (tetra --help shows the usage)", first, fmt::join(names, ", ")));
    return kExitUsage;
  }
  std::string name = "tetra";
  for (const CLI::App* command : app.get_subcommands()) {
    name += " " + command->get_name();
  }
  report_error(fmt::format("{} ({} --help shows the usage)", error.what(), name));
  return kExitUsage;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app("Tetra trains transformers on a mesh of processes; every layout gives the same numbers.", "tetra");
  Action action;
  TrainArguments train;
  ConfigArguments config;
  GenerateArguments generate;
  ConvertArguments convert;
  bool help_keys = false;
  app.set_version_flag("--version", std::string("tetra ") + TETRA_VERSION);
  app.add_flag("--help-keys", help_keys, "list all keys of the configuration, as a Markdown table");
  app.require_subcommand(0, 1);
  add_train(app, train, action);
  add_config(app, config, action);
  app.add_subcommand("env", "Show what Tetra finds on this machine")->callback([&] { action = run_env; });
  add_generate(app, generate, action);
  add_convert(app, convert, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : usage_error(app, error, argc > 1 ? argv[1] : "");
  }
  if (help_keys) {
    std::fputs(describe_keys().c_str(), stdout);
    return kExitDone;
  }
  if (!action) {
    std::fputs(app.help().c_str(), stderr);
    return kExitUsage;
  }
  try {
    return action();
  } catch (const std::exception& error) {
    report_error(message_of(error));
    return kExitFailed;
  }
}

}  // namespace tetra
