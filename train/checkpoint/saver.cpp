#include "train/checkpoint/saver.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <utility>

#include <ATen/Parallel.h>

#include "kernels/error.h"
#include "models/safetensors.h"
#include "train/checkpoint/folder.h"

namespace tetra {
namespace {

using Clock = std::chrono::steady_clock;

std::string rank_file(int rank, const char* ending) {
  return fmt::format("rank-{:05}.{}", rank, ending);
}

void check_object_name(const std::string& name) {
  const bool plain = !name.empty() && name.size() <= 200 && name != "." && name != ".." &&
                     name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  require(plain, "'{}' cannot be an object's name in a checkpoint: it becomes a file's name of at most 200 bytes",
          name);
}

}  // namespace

std::string make_save_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

struct CheckpointSaver::Job {
  int64_t step;
  std::string save_id;
  CheckpointContent content;
  int threads;
  std::promise<void> copied;
  bool copy_later;
};

CheckpointSaver::CheckpointSaver(SaverOptions options)
    : options_(std::move(options)), exceptions_(std::uncaught_exceptions()) {
  require(!options_.dir.empty(), "a checkpoint saver needs a folder");
  require(options_.rank >= 0 && options_.rank < options_.world_size, "rank {} of {} cannot save", options_.rank,
          options_.world_size);
  require(options_.keep >= 0, "keep is {}; it must be 0 (all) or more", options_.keep);
}

CheckpointSaver::~CheckpointSaver() {
  if (std::uncaught_exceptions() > exceptions_) {
    cancel_ = true;
  }
  try {
    wait();
  } catch (const std::exception& error) {
    if (!cancel_) {
      std::fputs(fmt::format("tetra: a checkpoint was not saved: {}\n", error.what()).c_str(), stderr);
    }
  }
}

void CheckpointSaver::start(std::function<void()> task) {
  std::packaged_task<void()> packaged(std::move(task));
  result_ = packaged.get_future();
  if (options_.background) {
    thread_ = std::thread(std::move(packaged));
  } else {
    packaged();
  }
}

void CheckpointSaver::prepare(const std::vector<StatePart>& parts) {
  wait();
  snapshot_.arrange(parts, rank_file(options_.rank, "safetensors"));
  start([this] { snapshot_.touch(); });
}

void CheckpointSaver::save(int64_t step, const std::string& save_id, CheckpointContent content) {
  require(step >= 0, "a checkpoint's step is {}; it must not be negative", step);
  check_object_name(save_id);
  wait();
  for (const auto& [name, unused] : content.objects) {
    check_object_name(name);
  }
  snapshot_.arrange(content.parts, rank_file(options_.rank, "safetensors"));
  auto job = std::make_shared<Job>();
  job->step = step;
  job->save_id = save_id;
  job->content = std::move(content);
  job->threads = at::get_num_threads();
  job->copy_later = options_.background && options_.deferred_copy;
  copied_ = job->copied.get_future().share();
  if (!job->copy_later) {
    snapshot_.copy(job->content.parts, job->threads);
    job->content.parts.clear();
    job->copied.set_value();
  }
  start([this, job] { run(*job); });
  if (!options_.background) {
    wait();
  }
}

void CheckpointSaver::wait_copied() {
  if (copied_.valid()) {
    copied_.wait();
  }
}

void CheckpointSaver::wait() {
  if (thread_.joinable()) {
    thread_.join();
  }
  if (result_.valid()) {
    result_.get();
  }
}

void CheckpointSaver::check() {
  if (result_.valid() && result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    wait();
  }
}

namespace {

/// Writes the small file that tells rank 0 what this rank has written; it is there as a whole or not at all.
void report_files(const SaveFolder& folder, int rank, const CheckpointPlan& mine) {
  write_file_atomically(folder.path(rank_file(rank, "json")), plan_text(mine));
}

/// Waits for files, with growing sleeps, until time is up, or the save is cancelled or given up by another rank.
class Watch {
 public:
  Watch(const SaveFolder& folder, std::chrono::milliseconds timeout, const std::atomic<bool>& cancel)
      : folder_(folder), timeout_(timeout), end_(Clock::now() + timeout), cancel_(cancel) {}

  template <typename Condition>
  void until(const std::string& what, Condition holds) {
    std::chrono::microseconds pause(200);
    while (!holds()) {
      require(!cancel_, "{}: cancelled", folder_.path());
      if (const auto why = folder_.given_up()) {
        throw Error(*why);
      }
      require(Clock::now() < end_, "{}: {} ms passed without {}", folder_.path(), timeout_.count(), what);
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 3 / 2, std::chrono::microseconds(20000));
    }
  }

 private:
  const SaveFolder& folder_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point end_;
  const std::atomic<bool>& cancel_;
};

/// Rank 0: adds up what the others report, and takes their reports away.
void collect_reports(CheckpointPlan& plan, const SaveFolder& folder, int world_size, Watch& watch) {
  for (int rank = 1; rank < world_size; ++rank) {
    const std::string report = folder.path(rank_file(rank, "json"));
    watch.until(fmt::format("a report of rank {}", rank), [&] { return status_of(report).has_value(); });
    merge_plan(plan, parse_plan(read_text_file(report), report));
    require(::unlink(report.c_str()) == 0, "cannot remove {}: {}", report, system_reason(errno));
  }
  check_tiling(plan, folder.path());
}

/// Page-aligned, as write_new_file needs it.
std::string write_object(const std::string& path, const std::string& bytes, const std::atomic<bool>& cancel) {
  HostBuffer buffer;
  buffer.reserve(std::max<uint64_t>(bytes.size(), 1));
  std::copy(bytes.begin(), bytes.end(), buffer.data());
  return write_new_file(path, buffer.data(), bytes.size(), cancel);
}

}  // namespace

CheckpointPlan CheckpointSaver::write_own(const Job& job, const SaveFolder& folder) {
  CheckpointPlan mine;
  mine.step = job.step;
  mine.world_size = options_.world_size;
  mine.tensors = snapshot_.tensors();
  if (snapshot_.bytes() > 0) {
    const std::string file = rank_file(options_.rank, "safetensors");
    mine.files[file] = {snapshot_.bytes(),
                        write_new_file(folder.path(file), snapshot_.image(), snapshot_.bytes(), cancel_)};
  }
  if (!job.content.objects.empty()) {
    make_folders(folder.path("objects"));
    for (const auto& [name, bytes] : job.content.objects) {
      const std::string file = "objects/" + name;
      mine.files[file] = {bytes.size(), write_object(folder.path(file), bytes, cancel_)};
    }
    sync_path(folder.path("objects"));
  }
  return mine;
}

void CheckpointSaver::run(Job& job) {
  if (job.copy_later) {
    // Also where it throws: a promise that is dropped would be an error of its own.
    const auto told = std::unique_ptr<std::promise<void>, void (*)(std::promise<void>*)>(
        &job.copied, [](std::promise<void>* copied) { copied->set_value(); });
    snapshot_.copy(job.content.parts, job.threads);
    job.content.parts.clear();
  }
  SaveFolder folder(options_.dir, job.step, job.save_id);
  Watch watch(folder, options_.timeout, cancel_);
  try {
    if (options_.rank != 0) {
      report_files(folder, options_.rank, write_own(job, folder));
      watch.until("rank 0 finishing the checkpoint", [&] { return folder.committed(); });
      return;
    }
    remove_leftovers(options_.dir, folder);
    CheckpointPlan plan = write_own(job, folder);
    plan.state_json = job.content.state_json;
    collect_reports(plan, folder, options_.world_size, watch);
    write_file_atomically(folder.path(kPlanFile), plan_text(plan));
    folder.commit();
  } catch (const std::exception& error) {
    folder.give_up(fmt::format("rank {}: {}", options_.rank, error.what()));
    ::unlink(folder.path(rank_file(options_.rank, "safetensors")).c_str());  // gives its room back at once
    throw;
  }
  remove_old_checkpoints(options_.dir, job.step, options_.keep);
}

}  // namespace tetra
