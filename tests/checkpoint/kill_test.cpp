// A process that is killed in the middle of saving leaves whole checkpoints alone in the list.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include <ATen/ops/empty.h>

#include "tests/checkpoint/parts.h"
#include "tests/support/synthetic.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoint/saver.h"

namespace tetra {
namespace {

constexpr int64_t kRows = 200;
constexpr int64_t kColumns = 1000;

void fill(const at::Tensor& tensor, int64_t step) {
  auto* data = tensor.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    data[i] = step * kRows * kColumns + i;
  }
}

/// Two ranks save step after step, until killed. Says each step that is on the disk. No libtorch threads are at work
/// here: the process is a fork.
void save_forever(const std::string& dir, int64_t step, const at::Tensor& state, int out) {
  CheckpointSaver first({.dir = dir, .rank = 0, .world_size = 2});
  CheckpointSaver second({.dir = dir, .rank = 1, .world_size = 2});
  for (;; ++step) {
    fill(state, step);
    const std::string id = make_save_id();
    first.save(step, id, {.parts = {{"x", {kRows, kColumns}, {0, 0}, state.narrow(0, 0, 90)}}});
    second.save(step, id, {.parts = {{"x", {kRows, kColumns}, {90, 0}, state.narrow(0, 90, kRows - 90)}}});
    first.wait();
    second.wait();
    if (::write(out, &step, sizeof step) != sizeof step) {
      return;
    }
  }
}

/// Runs such a process and kills it after a while. Returns the last step that it said was on the disk, or -1.
int64_t run_and_kill(const std::string& dir, int64_t step, const at::Tensor& state, std::chrono::microseconds after) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      save_forever(dir, step, state, ends[1]);
    } catch (const std::exception& error) {
      std::fputs(error.what(), stderr);
    }
    ::_exit(1);
  }
  ::close(ends[1]);
  std::this_thread::sleep_for(after);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  int64_t last = -1;
  for (int64_t said; ::read(ends[0], &said, sizeof said) == sizeof said;) {
    last = said;
  }
  ::close(ends[0]);
  return last;
}

/// What one save takes here, so that kills fall into it on a slow disk as on a fast one.
std::chrono::microseconds time_of_save(const std::string& dir, const at::Tensor& state) {
  CheckpointSaver saver({.dir = dir});
  const auto begin = std::chrono::steady_clock::now();
  saver.save(0, make_save_id(), {.parts = {{"x", {kRows, kColumns}, {0, 0}, state}}});
  saver.wait();
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
}

TEST(Kill, TheNewestIsAlwaysWhole) {
  const testing::TemporaryFolder dir;
  const testing::TemporaryFolder other;
  testing::Random random(5);
  const at::Tensor state = at::empty({kRows, kColumns}, at::kLong);
  const at::Tensor found = at::empty({kRows, kColumns}, at::kLong);
  int64_t newest = 0;
  for (int round = 0; round < 50; ++round) {
    const auto most = 4 * time_of_save(other.path(), state) + std::chrono::milliseconds(10);
    const auto after = std::chrono::microseconds(random() % static_cast<uint64_t>(most.count()));
    const int64_t said = run_and_kill(dir.path(), newest + 1, state, after);
    const auto paths = list_checkpoints(dir.path());
    if (paths.empty()) {
      EXPECT_EQ(said, -1);
      continue;
    }
    for (const std::string& path : paths) {
      EXPECT_EQ(CheckpointReader::open(path).verify(0, 1), std::nullopt);
    }
    const auto reader = CheckpointReader::open(paths[0]);
    EXPECT_GE(reader.step(), std::max(said, newest)) << "in round " << round;
    newest = reader.step();
    reader.read({{"x", {kRows, kColumns}, {0, 0}, found}});
    fill(state, newest);
    ASSERT_EQ(std::memcmp(found.const_data_ptr(), state.const_data_ptr(), found.nbytes()), 0);
    EXPECT_LE(paths.size(), 3u);  // the two that are kept, and one that was to go
  }
  EXPECT_GT(newest, 10);
}

}  // namespace
}  // namespace tetra
