// Damaged checkpoints are refused by name, and a save that fails leaves the earlier ones whole.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include <ATen/ops/ones.h>

#include "kernels/error.h"
#include "tests/checkpoint/parts.h"
#include "tests/support/synthetic.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoint/saver.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::error_of;
using testing::read_text;
using testing::TemporaryFolder;
using testing::write_text;

CheckpointContent small_content(double value = 1.0) {
  return {.parts = {{"x", {100}, {0}, at::ones({100}).fill_(value)}}, .objects = {{"mine", "bytes"}}};
}

void save_small(const std::string& dir, int64_t step, int64_t keep = 2, double value = 1.0) {
  CheckpointSaver saver({.dir = dir, .keep = keep});
  saver.save(step, make_save_id(), small_content(value));
  saver.wait();
}

/// What opening and verifying it says.
std::string fault_of(const std::string& folder) {
  return error_of([&] {
    const auto fault = CheckpointReader::open(folder).verify(0, 1);
    require(!fault, "{}", fault.value_or(""));
  });
}

void expect_starts(const std::string& text, const std::string& start) {
  EXPECT_EQ(text.substr(0, start.size()), start) << text;
}

std::vector<int64_t> steps_of(const std::string& dir) {
  std::vector<int64_t> steps;
  for (const std::string& path : list_checkpoints(dir)) {
    steps.push_back(checkpoint_step(fs::path(path).filename()).value());
  }
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(Names, Steps) {
  EXPECT_EQ(checkpoint_name(5), "step-00000005");
  EXPECT_EQ(checkpoint_step("step-00000005"), 5);
  EXPECT_EQ(checkpoint_step("step-123456789"), 123456789);
  for (const char* name : {"step-5", "step-0000000x", "step-", "", "step-000000005", ".step-00000005", "stop-00000005",
                           "step-00000005.tmp", "step--0000005", "step-99999999999999999999"}) {
    EXPECT_EQ(checkpoint_step(name), std::nullopt) << name;
  }
}

TEST(Rotation, ByNumber) {
  const TemporaryFolder dir;
  for (const int64_t step : {9, 10, 100}) {
    save_small(dir.path(), step);
  }
  EXPECT_EQ(steps_of(dir.path()), Steps({100, 10}));
  save_small(dir.path(), 100000000, 3);
  EXPECT_EQ(steps_of(dir.path()), Steps({100000000, 100, 10}));
  save_small(dir.path(), 100000001, 1);
  EXPECT_EQ(steps_of(dir.path()), Steps({100000001}));
}

TEST(Rotation, ZeroKeepsAll) {
  const TemporaryFolder dir;
  for (const int64_t step : {1, 2, 3, 4}) {
    save_small(dir.path(), step, 0);
  }
  EXPECT_EQ(steps_of(dir.path()), Steps({4, 3, 2, 1}));
}

// A run that started again with lower numbers must not lose what it has just written.
TEST(Rotation, LaterStepsOfAnotherRunStay) {
  const TemporaryFolder dir;
  save_small(dir.path(), 90);
  save_small(dir.path(), 100);
  for (const int64_t step : {5, 6, 7}) {
    save_small(dir.path(), step);
  }
  EXPECT_EQ(steps_of(dir.path()), Steps({100, 90, 7, 6}));
}

TEST(Rotation, TheSameStepIsReplaced) {
  const TemporaryFolder dir;
  save_small(dir.path(), 5, 2, 1.0);
  write_text(dir / "step-00000005/rank-00007.safetensors", "of an earlier layout");
  save_small(dir.path(), 5, 2, 2.0);
  EXPECT_EQ(steps_of(dir.path()), Steps({5}));
  EXPECT_FALSE(fs::exists(dir / "step-00000005/rank-00007.safetensors"));
  EXPECT_TRUE(CheckpointReader::open(dir / "step-00000005").read_whole("x").equal(at::ones({100}).fill_(2.0)));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(Listing, IgnoresWhatIsNotAWholeCheckpoint) {
  const TemporaryFolder dir;
  EXPECT_EQ(list_checkpoints(dir / "nowhere"), std::vector<std::string>());
  save_small(dir.path(), 5);
  fs::create_directories(dir / "step-00000006");
  fs::create_directories(dir / ".step-00000007.ab.tmp");
  fs::copy(dir / "step-00000005", dir / "checkpoint-8");
  fs::copy(dir / "step-00000005", dir / "step-9");
  write_text(dir / "step-00000010", "a file");
  EXPECT_EQ(list_checkpoints(dir.path()), std::vector<std::string>({dir / "step-00000005"}));
}

TEST(Leftovers, GoWithTheNextSave) {
  const TemporaryFolder dir;
  fs::create_directories(dir / ".step-00000003.dead.tmp/objects");
  write_text(dir / ".step-00000003.dead.tmp/rank-00000.safetensors", "half");
  fs::create_directories(dir / ".step-00000002.old.tmp");
  fs::create_directories(dir / ".other.tmp");
  SaveFolder alive(dir.path(), 4, "alive");  // another save that is under way
  write_text(alive.path("rank-00000.safetensors"), "half");
  save_small(dir.path(), 5);
  EXPECT_FALSE(fs::exists(dir / ".step-00000003.dead.tmp"));
  EXPECT_FALSE(fs::exists(dir / ".step-00000002.old.tmp"));
  EXPECT_TRUE(fs::exists(dir / ".other.tmp"));
  EXPECT_TRUE(fs::exists(alive.path("rank-00000.safetensors")));
}

class Damage : public ::testing::Test {
 protected:
  void SetUp() override { save_small(dir_.path(), 5); }

  std::string path(const std::string& file) const { return dir_ / "step-00000005/" + file; }

  void flip(const std::string& file, size_t byte) {
    std::string text = read_text(path(file));
    text.at(byte) ^= 1;
    write_text(path(file), text);
  }

  TemporaryFolder dir_;
};

TEST_F(Damage, NoneAtFirst) {
  EXPECT_EQ(fault_of(dir_ / "step-00000005"), "");
}

TEST_F(Damage, AFlippedByteInAnyFile) {
  for (const std::string file : {"rank-00000.safetensors", "objects/mine", "plan.json"}) {
    const std::string text = read_text(path(file));
    for (size_t byte = 0; byte < text.size(); ++byte) {
      flip(file, byte);
      ASSERT_EQ(fault_of(dir_ / "step-00000005").find(path(file) + ":"), 0u) << byte;
      write_text(path(file), text);
    }
  }
}

TEST_F(Damage, TruncatedOrLonger) {
  for (const std::string file : {"rank-00000.safetensors", "objects/mine"}) {
    const auto size = fs::file_size(path(file));
    fs::resize_file(path(file), size - 1);
    expect_starts(fault_of(dir_ / "step-00000005"), path(file) + ": truncated: ");
    fs::resize_file(path(file), size + 1);
    expect_starts(fault_of(dir_ / "step-00000005"), path(file) + ": corrupt: ");
    fs::resize_file(path(file), size);
  }
  const auto size = fs::file_size(path("plan.json"));
  for (const auto shorter : {size - 1, size - 2, size / 2, size * 0}) {
    fs::resize_file(path("plan.json"), shorter);
    expect_starts(fault_of(dir_ / "step-00000005"), path("plan.json") + ": ");
  }
}

TEST_F(Damage, CutShortWhileItIsOpen) {
  const auto reader = CheckpointReader::open(dir_ / "step-00000005");
  fs::resize_file(path("rank-00000.safetensors"), 200);
  expect_starts(error_of([&] { reader.read_whole("x"); }), path("rank-00000.safetensors") + ": truncated: ");
}

// The mapped way: what is missing of the last page would read as zeros.
TEST_F(Damage, CutShortWhileColumnsAreRead) {
  CheckpointSaver saver({.dir = dir_.path()});
  saver.save(6, make_save_id(), {.parts = {{"m", {64, 64}, {0, 0}, at::ones({64, 64})}}});
  saver.wait();
  const std::string file = dir_ / "step-00000006/rank-00000.safetensors";
  const auto reader = CheckpointReader::open(dir_ / "step-00000006");
  const std::vector<StatePart> columns = {{"m", {64, 64}, {0, 60}, at::ones({64, 4})}};
  reader.read(columns);
  for (const uint64_t shorter : {uint64_t{4}, uint64_t{8000}}) {
    fs::resize_file(file, fs::file_size(file) - shorter);
    expect_starts(error_of([&] { reader.read(columns); }), file + ": truncated: ");
  }
}

TEST_F(Damage, Missing) {
  for (const std::string file : {"rank-00000.safetensors", "objects/mine", "plan.json"}) {
    fs::rename(path(file), path("kept"));
    expect_starts(fault_of(dir_ / "step-00000005"), path(file) + " is missing");
    fs::rename(path("kept"), path(file));
  }
  expect_starts(fault_of(dir_ / "nowhere"), dir_ / "nowhere/plan.json is missing");
}

TEST_F(Damage, ForeignOrOfAnotherVersion) {
  for (const std::string text : {"", "{}", "[]", "not json", R"({"format": "other", "version": 1})"}) {
    write_text(path("plan.json"), text);
    expect_starts(fault_of(dir_ / "step-00000005"), path("plan.json") + ": not ");
  }
  write_text(path("plan.json"), R"({"format": "tetra-checkpoint", "version": 2, "anything": "else"})");
  EXPECT_EQ(fault_of(dir_ / "step-00000005"), path("plan.json") + ": format version 2; this program reads version 1");
}

CheckpointPlan one_tensor_plan() {
  CheckpointPlan plan;
  plan.files["f"] = {16, "0123456789abcdef"};
  plan.tensors["x"] = {at::kFloat, {4}, {{"f", 0, {{0}, {4}}}}};
  return plan;
}

// Plans that are well formed and lie: another program may have written them.
TEST(Plan, WhatItSaysMustBePossible) {
  const auto refusal = [](const std::function<void(CheckpointPlan&)>& change) {
    CheckpointPlan plan = one_tensor_plan();
    change(plan);
    return error_of([&] { check_tiling(parse_plan(plan_text(plan), "P"), "P"); });
  };
  EXPECT_EQ(refusal([](CheckpointPlan&) {}), "");
  EXPECT_EQ(refusal([](CheckpointPlan& p) { p.tensors["x"].chunks[0].begin = 1; }),
            "P: tensor 'x': chunk [0:4] is not within file 'f'");
  EXPECT_EQ(refusal([](CheckpointPlan& p) { p.tensors["x"].chunks[0].file = "g"; }),
            "P: tensor 'x': its file 'g' is not listed");
  EXPECT_EQ(refusal([](CheckpointPlan& p) { p.tensors["x"].chunks[0].box.sizes = {5}; }),
            "P: tensor 'x': a chunk of sizes [5] at [0] is not within shape [4]");
  EXPECT_EQ(refusal([](CheckpointPlan& p) { p.tensors["x"].chunks[0].box.sizes = {3}; }),
            "P: tensor 'x' of shape [4]: 3 of 4 elements are there");
  EXPECT_EQ(refusal([](CheckpointPlan& p) {
              p.tensors["x"].chunks.push_back({"f", 0, {{3}, {1}}});
            }),
            "P: tensor 'x': chunks [0:4] of f and [3:4] of f overlap");
  EXPECT_EQ(refusal([](CheckpointPlan& p) { p.tensors["x"].shape = {int64_t{1} << 62}; }),
            "P: tensor 'x': shape [4611686018427387904] is not possible");
  for (const std::string name : {"../f", "/f", "objects/", "objects/../f", "a/b", "..", "."}) {
    EXPECT_EQ(refusal([&](CheckpointPlan& p) { p.files[name] = {}; }),
              "P: file name '" + name + "' leads out of the folder");
  }
  expect_starts(refusal([](CheckpointPlan& p) { p.state_json = "[1]"; }), "the state of a checkpoint is not a JSON");
  expect_starts(refusal([](CheckpointPlan& p) { p.tensors["\xff"] = p.tensors["x"]; }),
                "a name in a checkpoint is not");
}

TEST(Saving, WhatIsNotABoxIsNamed) {
  const TemporaryFolder dir;
  CheckpointSaver saver({.dir = dir.path()});
  const auto refusal = [&](const std::vector<StatePart>& parts) {
    return error_of([&] {
      saver.save(1, make_save_id(), {.parts = parts});
      saver.wait();
    });
  };
  EXPECT_EQ(refusal({{"x", {4}, {1}, at::ones({4})}}), "tensor 'x': sizes [4] at [1] are not a box of shape [4]");
  EXPECT_EQ(refusal({{"x", {4}, {0}, at::ones({4})}, {"x", {4}, {0}, at::ones({4})}}),
            "tensor 'x': its box [0:4] is given twice");
  EXPECT_EQ(refusal({{"x", {4}, {0}, at::ones({2})}, {"x", {5}, {2}, at::ones({3})}}),
            "tensor 'x' is Float [4] in one part and Float [5] in another");
  EXPECT_NE(refusal({{"x", {4}, {0}, at::ones({3})}}).find("tensor 'x' of shape [4]: 3 of 4 elements are there"),
            std::string::npos);
  EXPECT_NE(refusal({{"x", {4}, {0}, at::ones({3})}, {"x", {4}, {2}, at::ones({2})}}).find("overlap"),
            std::string::npos);
  EXPECT_EQ(list_checkpoints(dir.path()), std::vector<std::string>());
  EXPECT_EQ(refusal({{"x", {4}, {0}, at::ones({4})}}), "");
}

/// Files of this process cannot become larger, as on a disk that is full.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  rlimit before_ = {};
};

TEST(Saving, AFullDiskLeavesTheOlderOneAndIsReported) {
  for (const bool background : {true, false}) {
    const TemporaryFolder dir;
    save_small(dir.path(), 1, 1);
    CheckpointSaver saver({.dir = dir.path(), .keep = 1, .background = background});
    const CheckpointContent large = {.parts = {{"x", {100000}, {0}, at::ones({100000})}}};
    {
      const SizeLimit limit(50000);
      const std::string error = error_of([&] {
        saver.save(2, make_save_id(), large);
        saver.wait();
      });
      EXPECT_NE(error.find("rank-00000.safetensors"), std::string::npos) << error;
      EXPECT_NE(error.find("File too large"), std::string::npos) << error;
    }
    EXPECT_EQ(steps_of(dir.path()), Steps({1}));
    EXPECT_EQ(fault_of(dir / "step-00000001"), "");
    saver.save(3, make_save_id(), large);
    saver.wait();
    EXPECT_EQ(steps_of(dir.path()), Steps({3}));
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
  }
}

TEST(Saving, AnErrorOfTheBackgroundComesWithTheNextCall) {
  const TemporaryFolder dir;
  write_text(dir / "file", "");
  CheckpointSaver saver({.dir = dir / "file"});
  const auto fails = [&](const std::function<void()>& call) {
    saver.save(1, make_save_id(), small_content());
    const std::string error = error_of(call);
    EXPECT_NE(error.find(dir / "file"), std::string::npos) << error;
  };
  fails([&] { saver.wait(); });
  fails([&] { saver.save(2, make_save_id(), small_content()); });
  fails([&] {
    for (;;) {
      saver.check();
      std::this_thread::yield();
    }
  });
  saver.check();  // it is said once
  saver.wait();
}

/// Errors of two ranks that save at once.
std::vector<std::string> errors_of_two(const std::string& dir, const std::vector<CheckpointContent>& contents,
                                       milliseconds timeout = milliseconds(60000)) {
  const std::string id = make_save_id();
  std::vector<std::string> errors(contents.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < contents.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      errors[rank] = error_of([&] {
        CheckpointSaver saver({.dir = dir, .rank = static_cast<int>(rank), .world_size = 2, .timeout = timeout});
        saver.save(5, id, contents[rank]);
        saver.wait();
      });
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return errors;
}

TEST(Saving, ARankThatFailsIsHeardByTheOther) {
  const TemporaryFolder dir;
  const CheckpointContent small = small_content();
  CheckpointContent large = {.parts = {{"y", {100000}, {0}, at::ones({100000})}}};
  for (const bool main_fails : {true, false}) {
    const SizeLimit limit(50000);
    const auto errors = errors_of_two(dir.path(), main_fails ? std::vector{large, small} : std::vector{small, large});
    const std::string file = main_fails ? "rank-00000.safetensors" : "rank-00001.safetensors";
    for (const std::string& error : errors) {
      EXPECT_NE(error.find(file), std::string::npos) << error;
      EXPECT_NE(error.find("File too large"), std::string::npos) << error;
    }
    EXPECT_EQ(steps_of(dir.path()), Steps());
  }
  EXPECT_EQ(errors_of_two(dir.path(), {small, large}), std::vector<std::string>({"", ""}));
}

TEST(Saving, RanksMustAgree) {
  const TemporaryFolder dir;
  const auto errors = errors_of_two(dir.path(), {small_content(), small_content()});
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("two ranks write the file 'objects/mine'"), std::string::npos) << error;
  }
  const auto shapes = errors_of_two(
      dir.path(), {{.parts = {{"x", {4}, {0}, at::ones({2})}}}, {.parts = {{"x", {5}, {2}, at::ones({3})}}}});
  for (const std::string& error : shapes) {
    EXPECT_NE(error.find("tensor 'x' is Float [4] on one rank and Float [5] on another"), std::string::npos) << error;
  }
}

// A file of an earlier save must not stand in for a rank that is not there.
TEST(Saving, AMissingRankIsNamedInTime) {
  const TemporaryFolder dir;
  const CheckpointContent half = {.parts = {{"x", {4}, {0}, at::ones({2})}}};
  const CheckpointContent rest = {.parts = {{"x", {4}, {2}, at::ones({2})}}};
  EXPECT_EQ(errors_of_two(dir.path(), {half, rest}), std::vector<std::string>({"", ""}));
  // Rank 1 alone: its files stay in a temporary folder of their own.
  CheckpointSaver alone({.dir = dir.path(), .rank = 1, .world_size = 2, .timeout = milliseconds(50)});
  alone.save(6, make_save_id(), rest);
  EXPECT_NE(error_of([&] { alone.wait(); }).find("50 ms passed without rank 0 finishing"), std::string::npos);
  const auto errors = errors_of_two(dir.path(), {half}, milliseconds(100));
  EXPECT_NE(errors[0].find("100 ms passed without a report of rank 1"), std::string::npos) << errors[0];
  EXPECT_EQ(fault_of(dir / "step-00000005"), "");
}

TEST(Saving, AnExceptionCancels) {
  const TemporaryFolder dir;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        CheckpointSaver saver({.dir = dir.path(), .world_size = 2});
        saver.save(1, make_save_id(), small_content());
        throw std::runtime_error("another rank is gone");
      },
      std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(list_checkpoints(dir.path()), std::vector<std::string>());
}

TEST(Saving, TheFolderVanishes) {
  const TemporaryFolder dir;
  CheckpointSaver saver({.dir = dir.path(), .rank = 1, .world_size = 2});
  saver.save(1, "id", {.parts = {{"x", {4}, {0}, at::ones({4})}}});
  while (!fs::exists(dir / ".step-00000001.id.tmp/rank-00001.json")) {
    std::this_thread::yield();
  }
  fs::remove_all(dir / ".step-00000001.id.tmp");
  EXPECT_NE(error_of([&] { saver.wait(); }).find("was removed while it was being written"), std::string::npos);
}

TEST(Saving, NamesOfObjects) {
  const TemporaryFolder dir;
  CheckpointSaver saver({.dir = dir.path()});
  for (const std::string name : {"", ".", "..", "a/b", "/a"}) {
    EXPECT_THROW(saver.save(1, make_save_id(), {.objects = {{name, ""}}}), Error) << name;
  }
}

}  // namespace
}  // namespace tetra
