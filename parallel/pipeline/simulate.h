#pragma once
// How long a schedule takes and what it holds, before it runs.

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace tetra {

/// In any unit of time. A whole backward takes input_gradient + weight_gradient.
struct ScheduleCosts {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  double message = 0;  // from the end of an action to the earliest start of what waits for it elsewhere
  std::vector<double> stage_weights =
      {};  // of each stage, times the costs; empty: all stages of a rank together weigh 1
};

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

struct Timeline {
  std::vector<std::vector<TimedAction>> actions;  // of each rank
  double makespan = 0;
  std::vector<double> idle;        // of each rank, over the makespan
  std::vector<int64_t> peak_held;  // of each rank: stage activations between a forward and the end of its backward

  double bubble() const;  // idle share of all ranks' time, in [0, 1)
};

/// Throws Error as check_schedule does.
Timeline simulate(const Schedule& schedule, const ScheduleCosts& costs = {});

/// One row a rank, time from left to right in at most `columns` characters: a forward is the last digit of its
/// micro-batch, a backward or input gradient a letter (a for micro-batch 0, 10, ...), a weight gradient =, idle time .
std::string timeline_text(const Timeline& timeline, int64_t columns = 100);
/// The same as a picture.
std::string timeline_svg(const Timeline& timeline, const std::string& title);

}  // namespace tetra
