#pragma once
// What a run reports: a line of JSON a step, and a progress line.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "train/config.h"
#include "train/trainer.h"

namespace tetra {

/// A step with its speed. mfu is the share of the machine's measured matrix-product peak, in [0, 1].
struct StepReport {
  StepResult result;
  double tokens_per_second = 0;  // counted tokens
  double mfu = 0;
};

/// metrics.jsonl: one object a step, numbers at full double precision, flushed at each step. Made by the main process.
class MetricsFile {
 public:
  /// Opens `path` anew, or goes on after the line of step `steps_done` of a run that is resumed; lines of later steps
  /// go. The folder is made. An empty path writes nothing.
  explicit MetricsFile(const std::string& path, int64_t steps_done = 0);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void write(const StepReport& report);

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

/// "step 12/100 | loss 5.1234 | grad_norm 1.02 | 2345 tokens/s | 1m 05s left": rewritten in place on a terminal.
class ProgressLine {
 public:
  ProgressLine(int64_t total_steps, int64_t every, int64_t steps_done = 0);
  void show(const StepReport& report);

 private:
  int64_t total_steps_;
  int64_t steps_done_;
  int64_t every_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tetra
