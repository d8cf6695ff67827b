#include "launch/command_line.h"

#include <cstdio>
#include <functional>

#include <CLI/CLI.hpp>

#include "launch/commands/commands.h"
#include "launch/config_reader.h"
#include "launch/report_error.h"

namespace tetra {
namespace {

/// What was chosen on the command line: its exit code when run.
using Action = std::function<int()>;

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
      ->check(CLI::Range(1, 1024));
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
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  command->add_option("--temperature", options.temperature, "0 takes the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--top-k", options.top_k, "draw from so many likeliest tokens; 0: from all")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  command->add_option("--seed", options.seed, "of the draws")->capture_default_str();
  command->callback([&] { action = [&] { return run_generate(arguments); }; });
}

/// CLI11's messages, on one line with what to do.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string name = "tetra";
  for (const CLI::App* command : app.get_subcommands()) {
    name += " " + command->get_name();
  }
  report_error(std::string(error.what()) + " (" + name + " --help shows the usage)");
  return kExitUsage;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app("Tetra trains transformers on a mesh of processes; every layout gives the same numbers.", "tetra");
  Action action;
  TrainArguments train;
  ConfigArguments config;
  GenerateArguments generate;
  bool help_keys = false;
  app.set_version_flag("--version", std::string("tetra ") + TETRA_VERSION);
  app.add_flag("--help-keys", help_keys, "list all keys of the configuration, as a Markdown table");
  app.require_subcommand(0, 1);
  add_train(app, train, action);
  add_config(app, config, action);
  app.add_subcommand("env", "Show what Tetra finds on this machine")->callback([&] { action = run_env; });
  add_generate(app, generate, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : usage_error(app, error);
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
    report_error(error.what());
    return kExitFailed;
  }
}

}  // namespace tetra
