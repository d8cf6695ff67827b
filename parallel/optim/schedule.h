#pragma once
// Learning-rate schedules: pure functions of the step.

#include <cstdint>
#include <string>

namespace tetra {

struct Schedule {
  std::string type = "constant";  // constant | linear | cosine
  double lr = 3e-4;               // the peak
  double min_lr = 0.0;            // where linear and cosine end
  int64_t warmup_steps = 0;       // linear from lr/warmup_steps up to lr
  int64_t total_steps = 1;
};

/// The rate of step `step` (1-based). During warm-up lr*step/warmup_steps; afterwards constant, or falling from lr at
/// the end of warm-up to min_lr at total_steps. Throws Error for a type that is not known.
double learning_rate(const Schedule& schedule, int64_t step);

}  // namespace tetra
