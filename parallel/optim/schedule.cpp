#include "parallel/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/error.h"

namespace tetra {

double learning_rate(const Schedule& schedule, int64_t step) {
  if (step <= schedule.warmup_steps) {
    return schedule.lr * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.type == "constant") {
    return schedule.lr;
  }
  const auto rest = static_cast<double>(std::max<int64_t>(schedule.total_steps - schedule.warmup_steps, 1));
  const double done = std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / rest);
  if (schedule.type == "linear") {
    return schedule.lr + (schedule.min_lr - schedule.lr) * done;
  }
  if (schedule.type == "cosine") {
    return schedule.min_lr + 0.5 * (schedule.lr - schedule.min_lr) * (1 + std::cos(std::numbers::pi * done));
  }
  fail("train.scheduler.type {} is not known; use constant, linear or cosine", schedule.type);
}

}  // namespace tetra
