#pragma once
// Pipeline schedules as data: what each rank does, in order. Pure arithmetic; whoever runs one adds the messages.

#include <cstdint>
#include <string>
#include <vector>

namespace tetra {

/// What a stage does for one micro-batch. Backward in one go, or split, so that weight gradients, for which nobody
/// waits, fill idle time (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
enum class Work { forward, backward, input_gradient, weight_gradient };

struct Action {
  Work work = Work::forward;
  int64_t stage = 0;  // of the whole pipeline, from 0
  int64_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

/// "3F0" is the forward of stage 3 for micro-batch 0; B is backward, I the input gradient, W the weight gradient.
std::string action_text(const Action& action);

struct Schedule {
  std::string name;
  int64_t micro_batches = 0;
  std::vector<int64_t> rank_of_stage;        // of each stage
  std::vector<std::vector<Action>> actions;  // of each rank, in order

  int64_t ranks() const { return static_cast<int64_t>(actions.size()); }
  int64_t stages() const { return static_cast<int64_t>(rank_of_stage.size()); }
  int64_t rank_of(const Action& action) const { return rank_of_stage[static_cast<size_t>(action.stage)]; }
};

/// `type` is one of
///   gpipe        all forwards, then all backwards (Huang et al., 2019)
///   1f1b         one forward, one backward in turn after a warm-up (PipeDream-flush: Narayanan et al., 2021)
///   interleaved  the same with `virtual_stages` stages a rank, rank r taking r, r + ranks, ... (Megatron-LM, 2021)
///   zb-h1        1f1b with split backward: weight gradients fill the cool-down, at 1f1b's memory (Qi et al., 2023)
///   zbv          two stages a rank, r and 2*ranks-1-r, with split backward (Qi et al., 2024)
/// for any number of micro-batches, fewer than ranks too. Throws Error for another type, and where virtual_stages does
/// not suit it: 1 for the first two and zb-h1, 2 for zbv.
Schedule make_schedule(const std::string& type, int64_t ranks, int64_t virtual_stages, int64_t micro_batches);

/// Reads one row of actions a rank, separated by commas: "0F0, 0F1, 0B0". The stages of a rank are those of its row.
/// Throws Error, with row and column, for what is no action.
Schedule parse_schedule(const std::string& csv, const std::string& origin);
std::string schedule_csv(const Schedule& schedule);

/// Throws Error, naming the first fault, unless every micro-batch passes every stage once in each direction, on the
/// stage's rank, weight gradients after input gradients, messages between two stages leave in the order in which they
/// are taken, and nothing waits for ever.
void check_schedule(const Schedule& schedule);

}  // namespace tetra
