// `tetra convert`, both ways.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/command_line.h"
#include "models/safetensors.h"
#include "tests/support/synthetic.h"
#include "train/checkpoint/folder.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;

std::string reference(const std::string& name) {
  return std::string(TETRA_TEST_DATA) + "/reference/" + name;
}

struct Outcome {
  int code = -1;
  std::string err;
};

Outcome convert(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"tetra", "convert"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run_command_line(static_cast<int>(argv.size()), argv.data());
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

void expect_done(const std::vector<std::string>& arguments) {
  const Outcome outcome = convert(arguments);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

void expect_error(int code, const std::vector<std::string>& arguments, const std::string& message) {
  const Outcome outcome = convert(arguments);
  EXPECT_EQ(outcome.code, code);
  EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
}

void expect_same_weights(const std::string& folder, const std::string& other) {
  const auto a = WeightReader::open(folder);
  const auto b = WeightReader::open(other);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, info] : a.tensors()) {
    const Slice whole = Slice::whole(info.shape);
    ASSERT_EQ(b.tensors().at(name).dtype, info.dtype);
    const at::Tensor x = a.read(name, whole, info.dtype);
    const at::Tensor y = b.read(name, whole, info.dtype);
    EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << name;
  }
}

TEST(Convert, ThereAndBackBitForBit) {
  for (const std::string name : {"llama", "gpt2"}) {
    const testing::TemporaryFolder dir;
    expect_done({reference(name), "--to", "checkpoint", dir / "ckpt"});
    expect_done({dir / "ckpt", "--to", "hf", dir / "hf"});
    expect_same_weights(reference(name), dir / "hf");
    expect_done({dir / "ckpt/step-00000000", dir / "shards", "--to", "hf", "--max-shard-size", "20KB"});
    EXPECT_TRUE(fs::exists(dir / "shards/model.safetensors.index.json"));
    expect_same_weights(reference(name), dir / "shards");
  }
}

TEST(Convert, AHalfTypeThereAndBack) {
  const testing::TemporaryFolder dir;
  expect_done({reference("llama"), "--to", "checkpoint", dir / "a"});
  for (const std::string dtype : {"bf16", "fp16"}) {
    const std::string half = dir / dtype;
    expect_done({dir / "a", "--to", "hf", half, "--dtype", dtype});
    expect_done({half, "--to", "checkpoint", dir / ("from_" + dtype)});
    expect_done({dir / ("from_" + dtype), "--to", "hf", dir / ("again_" + dtype), "--dtype", dtype});
    expect_same_weights(half, dir / ("again_" + dtype));
  }
}

TEST(Convert, ADamagedCheckpointGivesWayToTheOneBeforeIt) {
  const testing::TemporaryFolder dir;
  expect_done({reference("llama"), "--to", "checkpoint", dir / "ckpt"});
  fs::copy(dir / "ckpt/step-00000000", dir / "ckpt/step-00000007");
  fs::resize_file(dir / "ckpt/step-00000007/rank-00000.safetensors", 100);
  expect_error(1, {dir / "ckpt/step-00000007", "--to", "hf", dir / "hf"}, "rank-00000.safetensors: truncated");
  EXPECT_FALSE(fs::exists(dir / "hf"));
  expect_error(0, {dir / "ckpt", "--to", "hf", dir / "hf"}, "rank-00000.safetensors: truncated");
  expect_same_weights(reference("llama"), dir / "hf");
}

TEST(Convert, BadArguments) {
  const testing::TemporaryFolder dir;
  expect_error(2, {}, "FROM is required");
  expect_error(2, {"a", "--to", "hf"}, "DIR is required");
  expect_error(2, {"a", "b"}, "--to is required");
  expect_error(2, {"a", "b", "--to", "gguf"}, "--to: gguf not in {hf,checkpoint}");
  expect_error(2, {"a", "b", "--to", "hf", "--dtype", "int8"}, "--dtype: int8 not in {fp32,bf16,fp16}");
  for (const std::string size : {"5 apples", "0", "-1GB"}) {
    expect_error(2, {"a", "b", "--to", "hf", "--max-shard-size=" + size},
                 "--max-shard-size: '" + size + "' is not a size; write 5GB");
  }
  expect_error(2, {dir / "none", dir / "b", "--to", "hf"}, dir / "none: no such folder");
  expect_error(2, {dir / "none", dir / "b", "--to", "checkpoint"}, dir / "none: no such folder");
  expect_error(2, {reference("llama"), dir / "b", "--to", "checkpoint", "--dtype", "bf16"}, "--dtype is for --to hf");
  expect_error(1, {reference("llama"), dir / "b", "--to", "hf"}, "is no checkpoint and holds none");
  expect_error(1, {dir.path(), dir / "b", "--to", "checkpoint"}, "config.json");
  EXPECT_FALSE(fs::exists(dir / "b"));
}

}  // namespace
}  // namespace tetra
