#include "train/run.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include <unistd.h>

#include <fmt/format.h>

#include "kernels/error.h"
#include "models/weights.h"
#include "train/checkpoints.h"
#include "train/flops.h"
#include "train/metrics.h"
#include "train/text/tokenizer.h"
#include "train/trainer.h"

namespace tetra {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// An export that cannot be written should not come to light after the training.
void check_writable(const std::string& folder) {
  namespace fs = std::filesystem;
  fs::path path = fs::absolute(folder);
  require(!fs::exists(path) || fs::is_directory(path), "export: {} is there and is not a folder", folder);
  while (!fs::exists(path)) {
    path = path.parent_path();
  }
  require(fs::is_directory(path) && ::access(path.c_str(), W_OK) == 0, "export: cannot write to {}", path.string());
}

// What the main process tells the user.
class Report {
 public:
  Report(const Config& config, const Trainer& trainer)
      : metrics_(config.log.metrics, trainer.steps_done()),
        progress_(config.train.steps, config.log.every, trainer.steps_done()),
        flops_per_token_(model_flops_per_token(trainer.model().config(), config.data.seq_len)),
        sequences_(config.train.global_batch_size),
        seq_len_(config.data.seq_len) {
    if (!config.log.metrics.empty()) {
      const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
      peak_ = measured_peak_flops(trainer.model().parameters().precision().compute, cores);
    }
  }

  void step(const StepResult& result, double seconds) {
    StepReport report{result};
    report.tokens_per_second = static_cast<double>(result.tokens) / seconds;
    const double flops = flops_per_token_ * static_cast<double>(sequences_ * seq_len_);
    report.mfu = peak_ > 0 ? flops / seconds / peak_ : 0;
    metrics_.write(report);
    progress_.show(report);
  }

 private:
  MetricsFile metrics_;
  ProgressLine progress_;
  double flops_per_token_;
  int64_t sequences_;
  int64_t seq_len_;
  double peak_ = 0;
};

}  // namespace

RunResult run_training(const Config& config, World& world) {
  if (!config.export_dir.empty()) {
    check_writable(config.export_dir);
  }
  Trainer trainer(config, world);
  Checkpoints checkpoints(config.checkpoint, world, trainer);
  checkpoints.resume();
  std::optional<Report> report;
  if (world.is_main_process()) {
    report.emplace(config, trainer);
  }
  world.barrier("run.start");  // the machine's peak is measured before the ranks share it
  RunResult run;
  while (trainer.steps_done() < config.train.steps) {
    const auto start = Clock::now();
    const StepResult result = trainer.step();
    run.losses.push_back(result.loss);
    run.grad_norms.push_back(result.grad_norm);
    if (report) {
      report->step(result, seconds_since(start));
    }
    checkpoints.after_step();
  }
  checkpoints.save();
  checkpoints.finish();
  if (!config.export_dir.empty()) {
    export_model(trainer.model(), trainer.state(), world, config.export_dir);
    if (world.is_main_process() && !config.data.text.empty()) {
      make_tokenizer(config.data.tokenizer)->save(config.export_dir);
    }
    world.print(fmt::format("wrote {}", config.export_dir));
  }
  return run;
}

}  // namespace tetra
