// Times checkpoints of one rank beside the disk itself: in each round a plain file of the same size is written and
// flushed, then checkpoints are written in the foreground and in the background, and read on the same division and on
// another one; ratios are of medians of one run.
//   checkpoint_bench [FOLDER] [MiB] [rounds]
// "held up" is the time that save() keeps the caller, as a share of the time until the checkpoint is on the disk;
// with a deferred copy, what wait_copied() costs after a forward and backward pass of the length given counts too.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "kernels/error.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/reader.h"
#include "train/checkpoint/saver.h"

namespace {

using Clock = std::chrono::steady_clock;
using tetra::StatePart;

constexpr int64_t kTensors = 16;
constexpr int64_t kColumns = 4096;

double seconds_of(const std::function<void()>& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::vector<StatePart> make_state(int64_t bytes) {
  const int64_t rows = std::max<int64_t>(1, bytes / (kTensors * kColumns * 4));
  std::vector<StatePart> parts;
  for (int64_t i = 0; i < kTensors; ++i) {
    parts.push_back({"weights/" + std::to_string(i),
                     {rows, kColumns},
                     {0, 0},
                     at::arange(i, i + rows * kColumns, at::kFloat).view({rows, kColumns})});
  }
  return parts;
}

int64_t bytes_of(const std::vector<StatePart>& parts) {
  int64_t bytes = 0;
  for (const StatePart& part : parts) {
    bytes += static_cast<int64_t>(part.data.nbytes());
  }
  return bytes;
}

/// The same tensors as two ranks of tp hold them, one after the other: halves of the columns.
std::vector<StatePart> halves_of_columns(const std::vector<StatePart>& parts) {
  std::vector<StatePart> halves;
  for (const StatePart& part : parts) {
    for (int64_t half = 0; half < 2; ++half) {
      halves.push_back(
          {part.name, part.global_shape, {0, half * kColumns / 2}, at::empty({part.global_shape[0], kColumns / 2})});
    }
  }
  return halves;
}

std::vector<StatePart> like(const std::vector<StatePart>& parts) {
  std::vector<StatePart> result = parts;
  for (StatePart& part : result) {
    part.data = at::empty(part.data.sizes());
    part.data.zero_();
  }
  return result;
}

/// What the disk does without any of this: blocks of 8 MiB, then a flush.
void write_plainly(const std::string& path, const std::vector<StatePart>& parts) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  tetra::require(descriptor >= 0, "cannot write {}", path);
  for (const StatePart& part : parts) {
    const char* data = static_cast<const char*>(part.data.const_data_ptr());
    for (size_t at = 0; at < part.data.nbytes(); at += size_t{8} << 20) {
      const size_t size = std::min(size_t{8} << 20, part.data.nbytes() - at);
      tetra::require(::write(descriptor, data + at, size) == static_cast<ssize_t>(size), "cannot write {}", path);
    }
  }
  tetra::require(::fsync(descriptor) == 0, "cannot flush {}", path);
  ::close(descriptor);
}

using Times = std::map<std::string, std::vector<double>>;

void time_saver(tetra::CheckpointSaver& saver, int64_t step, const std::vector<StatePart>& state, double pass,
                const std::string& name, Times& times) {
  double held = 0.0;
  times[name].push_back(seconds_of([&] {
    held = seconds_of([&] { saver.save(step, tetra::make_save_id(), {.parts = state}); });
    if (pass > 0.0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pass));
    }
    held += seconds_of([&] { saver.wait_copied(); });
    saver.wait();
  }));
  times[name + " held up"].push_back(held);
}

void print(const Times& times, double bytes) {
  const double disk = median(times.at("disk"));
  const double same = median(times.at("read same"));
  for (const auto& [name, seconds] : times) {
    const double time = median(seconds);
    if (name.ends_with(" held up")) {
      const double whole = median(times.at(name.substr(0, name.size() - 8)));
      std::printf("%-22s %9.1f ms  %5.1f %% of the save\n", name.c_str(), 1e3 * time, 100.0 * time / whole);
    } else {
      const bool read = name.starts_with("read");
      std::printf("%-22s %9.1f ms  %6.2f GB/s  %5.2f x %s\n", name.c_str(), 1e3 * time, bytes / time / 1e9,
                  (read ? same : disk) / time, read ? "the same division" : "the disk");
    }
  }
}

void run(const std::string& folder, int64_t mib, int rounds) {
  const auto state = make_state(mib << 20);
  const auto same = like(state);
  const auto other = like(halves_of_columns(state));
  tetra::CheckpointSaver foreground({.dir = folder + "/foreground", .keep = 1, .background = false});
  tetra::CheckpointSaver background({.dir = folder + "/background", .keep = 1});
  tetra::CheckpointSaver deferred({.dir = folder + "/deferred", .keep = 1, .deferred_copy = true});
  for (auto* saver : {&foreground, &background, &deferred}) {
    saver->prepare(state);
    saver->wait();
  }
  Times all;
  for (int round = 0; round <= rounds; ++round) {  // the first one warms up
    Times times;
    times["disk"].push_back(seconds_of([&] { write_plainly(folder + "/plain", state); }));
    std::filesystem::remove(folder + "/plain");
    time_saver(foreground, round, state, 0.0, "foreground", times);
    time_saver(background, round, state, 0.0, "background", times);
    time_saver(deferred, round, state, 0.5, "deferred", times);
    const auto reader = tetra::CheckpointReader::open(tetra::list_checkpoints(folder + "/background").at(0));
    times["verify"].push_back(seconds_of([&] {
      const auto fault = reader.verify(0, 1);
      tetra::require(!fault, "{}", fault.value_or(""));
    }));
    times["read same"].push_back(seconds_of([&] { reader.read(same); }));
    times["read other"].push_back(seconds_of([&] { reader.read(other); }));
    for (auto& [name, seconds] : times) {
      if (round > 0) {
        all[name].push_back(seconds[0]);
      }
    }
  }
  std::printf("%lld MiB, %d threads, medians of %d rounds\n", static_cast<long long>(mib), at::get_num_threads(),
              rounds);
  print(all, static_cast<double>(bytes_of(state)));
}

}  // namespace

int main(int count, char** arguments) {
  const std::string parent = count > 1 ? arguments[1] : ".";
  const int64_t mib = count > 2 ? std::atoll(arguments[2]) : 1024;
  const int rounds = count > 3 ? std::atoi(arguments[3]) : 5;
  if (mib < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: checkpoint_bench [FOLDER] [MiB >= 1] [rounds >= 1]\n");
    return 2;
  }
  const std::string folder = parent + "/checkpoint_bench." + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  int code = 0;
  try {
    run(folder, mib, rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    code = 1;
  }
  std::filesystem::remove_all(folder);
  return code;
}
