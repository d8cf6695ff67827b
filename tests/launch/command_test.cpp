// The command line: in this process where that will do, since starting a program with libtorch takes a while.
#include "launch/command_line.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "launch/report_error.h"

namespace tetra {
namespace {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

Outcome run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "tetra");
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run_command_line(static_cast<int>(argv.size()), argv.data());
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

/// Runs the built program, after assignments to its environment; `err` is left empty where `redirect` discards it.
Outcome run_program(const std::string& environment, const std::string& arguments, const std::string& redirect) {
  const std::string command = environment + " '" TETRA_BUILD "/tetra' " + arguments + " " + redirect;
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t count; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.out.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return outcome;
}

class Command : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    folder_ = std::filesystem::temp_directory_path() / ("tetra_command_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    std::filesystem::current_path(folder_);
    write(
        "model: {config: {model_type: llama, vocab_size: 256, hidden_size: 32, intermediate_size: 64,\n"
        "                 num_hidden_layers: 1, num_attention_heads: 8, num_key_value_heads: 4}}\n"
        "data: {text: nowhere.txt, seq_len: 8}\n");
  }
  void TearDown() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }

  void write(const std::string& yaml) { std::ofstream("c.yaml") << yaml; }

  /// Expects a refusal: exit code 2, nothing on standard output, and one line that begins so on standard error.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& message) {
    const Outcome outcome = run(arguments);
    const std::string line = "tetra: error: " + message;
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.substr(0, line.size()), line);
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  }

  std::filesystem::path before_;
  std::filesystem::path folder_;
};

TEST_F(Command, HelpAndVersion) {
  EXPECT_EQ(run({"--version"}).out.rfind("tetra ", 0), 0u);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{{"--version"},
                                                                                         {"--help"},
                                                                                         {"-h"},
                                                                                         {"train", "--help"},
                                                                                         {"config", "--help"},
                                                                                         {"env", "--help"},
                                                                                         {"generate", "--help"},
                                                                                         {"convert", "--help"},
                                                                                         {"--help-keys"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments[0];
    EXPECT_NE(outcome.out, "") << arguments[0];
    EXPECT_EQ(outcome.err, "") << arguments[0];
  }
  EXPECT_NE(run({"--help"}).out.find("generate"), std::string::npos);
  EXPECT_NE(run({"--help-keys"}).out.find("| `train.steps` | integer | `100` | at least 1 |"), std::string::npos);
}

TEST_F(Command, Usage) {
  const Outcome nothing = run({});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_NE(nothing.err.find("Usage: tetra"), std::string::npos);
  expect_refused({"trian", "c.yaml"}, "trian is not a command; use train, config, env, generate, convert");
  expect_refused({"--what"}, "The following argument was not expected: --what (tetra --help shows the usage)");
  expect_refused({"train"}, "CONFIG is required (tetra train --help shows the usage)");
  expect_refused({"train", "c.yaml", "--sett", "a=b"}, "The following arguments were not expected");
  expect_refused({"train", "c.yaml", "other.yaml"}, "The following argument was not expected: other.yaml");
  expect_refused({"train", "-n", "0", "c.yaml"}, "-n: ");
  expect_refused({"train", "-n", "-2", "c.yaml"}, "-n: ");
  expect_refused({"train", "-n", "2000", "c.yaml"}, "-n: ");
  expect_refused({"train", "-n", "two", "c.yaml"}, "-n: 'two' is not an integer from 1 to 1024");
  expect_refused({"train", "-n", "1.5", "c.yaml"}, "-n: '1.5' is not an integer from 1 to 1024");
  expect_refused({"train", "-n", "010", "c.yaml"}, "-n: '010' is not an integer from 1 to 1024");
  expect_refused({"train", "-n"}, "-n: ");
  expect_refused({"config", "c.yaml", "--set"}, "--set: ");
  expect_refused({"generate"}, "MODEL_DIR is required");
  expect_refused({"generate", "."}, "--prompt is required");
  expect_refused({"generate", "nowhere", "--prompt", "x"}, "nowhere: no such folder");
  expect_refused({"generate", ".", "--prompt", "x", "--temperature", "-1"}, "--temperature: ");
  expect_refused({"generate", ".", "--prompt", "x", "--seed", "-1"}, "--seed: '-1' is not an integer");
}

TEST_F(Command, ConfigurationErrors) {
  expect_refused({"train", "none.yaml"}, "none.yaml: cannot be read: No such file or directory\n");
  expect_refused({"train", "c.yaml", "--set", "train.steps=abc"},
                 "--set train.steps=abc: train.steps must be an integer, not the text 'abc'\n");
  expect_refused({"config", "c.yaml", "--set", "seed=1", "--set=seed=x"}, "--set seed=x: seed must be an integer");
  expect_refused({"train", "c.yaml", "--set", "parallelism.pp_size=2"},
                 "--set parallelism.pp_size=2: parallelism.pp_size 2: pipeline parallelism is not there yet; use 1\n");
  expect_refused({"train", "-n", "3", "c.yaml", "--set", "parallelism.tp_size=2"},
                 "-n 3, but the configuration makes 2 (tp_size 2)");
  expect_refused({"train", "c.yaml", "--set", "parallelism.ep_size=2"}, "--set parallelism.ep_size=2: ");
  write("train:\n  stepz: 5\n");
  expect_refused({"train", "c.yaml"}, "c.yaml:2:3: train.stepz is not a key; did you mean train.steps?\n");
  expect_refused({"config", "c.yaml"}, "c.yaml:2:3: train.stepz is not a key; did you mean train.steps?\n");
}

TEST_F(Command, ModelAndLayoutAreCheckedBeforeAnyRankStarts) {
  expect_refused({"train", "c.yaml", "--set", "parallelism.tp_size=3"},
                 "tp_size 3 does not divide num_attention_heads 8; use 1, 2, 4 or 8");
  const Outcome type = run({"train", "c.yaml", "--set", "model.config.model_type=unheard"});
  EXPECT_EQ(type.code, 2) << type.err;
  EXPECT_NE(type.err.find("model.config: model_type"), std::string::npos) << type.err;
  const Outcome folder = run({"train", "c.yaml", "--set", "model.config=null", "--set", "model.from=nowhere"});
  EXPECT_EQ(folder.code, 2) << folder.err;
  EXPECT_NE(folder.err.find("nowhere/config.json"), std::string::npos) << folder.err;
}

TEST_F(Command, ConfigPrintsWhatReadsBack) {
  const Outcome first = run({"config", "c.yaml", "--set", "train.steps=1e3", "--set", "export=\"a: b\""});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("  steps: 1000\n"), std::string::npos) << first.out;
  write(first.out);
  EXPECT_EQ(run({"config", "c.yaml"}).out, first.out);
  setenv("TETRA__train__steps", "7", 1);
  const Outcome environment = run({"config", "c.yaml"});
  unsetenv("TETRA__train__steps");
  EXPECT_NE(environment.out.find("  steps: 7\n"), std::string::npos) << environment.out;
}

TEST_F(Command, EnvironmentReport) {
  const Outcome outcome = run({"env"});
  EXPECT_EQ(outcome.code, 0);
  for (const std::string line : {"tetra ", "\nlibtorch ", "\ncompiler ", "\ncpu ", "\ncores ", "\nvectors ",
                                 "\nmemory ", "\nallocator ", "\nOMP_NUM_THREADS ", "\nmpi ", "\ncuda ", "\nplace "}) {
    EXPECT_NE(outcome.out.find(line), std::string::npos) << line << outcome.out;
  }
}

TEST(Report, LibtorchsStacksAreLeftOut) {
  EXPECT_EQ(message_of(std::runtime_error("bad shape\nException raised from f at x.h:1\nframe #0: g")), "bad shape");
  EXPECT_EQ(message_of(std::runtime_error("two\nlines")), "two\nlines");
}

TEST_F(Command, TheBuiltProgram) {
  EXPECT_EQ(run_program("", "--help", "2>/dev/null").out, run({"--help"}).out);
  const Outcome refused = run_program("", "train c.yaml --set seed=x", "2>&1 >/dev/null");
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "tetra: error: --set seed=x: seed must be an integer, not the text 'x'\n");
}

TEST_F(Command, TheLaunchersPlaceIsHeeded) {
  const std::string place = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511";
  const Outcome given = run_program(place, "train -n 2 c.yaml", "2>&1");
  EXPECT_EQ(given.code, 2);
  EXPECT_EQ(given.out,
            "tetra: error: -n 2: torchrun-style variables already started this process as rank 0 of 2; leave out -n\n");
  const Outcome half = run_program("RANK=0", "train c.yaml", "2>&1");
  EXPECT_EQ(half.code, 2) << half.out;
  EXPECT_EQ(half.out.rfind("tetra: error: ", 0), 0u) << half.out;
}

}  // namespace
}  // namespace tetra
