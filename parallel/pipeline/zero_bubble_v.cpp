#include "parallel/pipeline/zero_bubble_v.h"

#include <algorithm>
#include <optional>

#include "kernels/error.h"

namespace tetra {
namespace {

// Everything that a run of the clock knows. All stages see micro-batches in order, so that counts tell what is done.
class Clock {
 public:
  Clock(int64_t ranks, int64_t micro_batches)
      : p_(ranks),
        m_(micro_batches),
        forward_(static_cast<size_t>(2 * ranks)),
        input_(static_cast<size_t>(2 * ranks)),
        weights_(static_cast<size_t>(2 * ranks), 0),
        held_(static_cast<size_t>(ranks), 0) {}

  /// What rank r does in the next tick, as far as it can do anything.
  std::optional<Action> choose(int64_t r) const {
    const int64_t first = r;
    const int64_t second = 2 * p_ - 1 - r;
    const int64_t limit = 2 * p_;
    const int64_t held = held_[static_cast<size_t>(r)];
    // Whoever else waits for gradients comes first; then what leads to the turn; weights fill what is left.
    for (const int64_t stage : {second, first}) {
      if (input_ready(stage)) {
        return Action{Work::input_gradient, stage, count(input_, stage)};
      }
    }
    // One place is kept for the second stage: without it the first could fill a rank, and nothing would move.
    if (held < limit && forward_ready(second)) {
      return Action{Work::forward, second, count(forward_, second)};
    }
    if (held < limit - 1 && forward_ready(first)) {
      return Action{Work::forward, first, count(forward_, first)};
    }
    for (const int64_t stage : {second, first}) {
      if (weights_[static_cast<size_t>(stage)] < count(input_, stage)) {
        return Action{Work::weight_gradient, stage, weights_[static_cast<size_t>(stage)]};
      }
    }
    return std::nullopt;
  }

  /// Actions of this tick count from the next one on.
  void take(int64_t r, const Action& action) {
    const auto stage = static_cast<size_t>(action.stage);
    switch (action.work) {
      case Work::forward:
        forward_[stage].push_back(now_ + 1);
        ++held_[static_cast<size_t>(r)];
        break;
      case Work::input_gradient:
        input_[stage].push_back(now_ + 1);
        break;
      default:
        ++weights_[stage];
        --held_[static_cast<size_t>(r)];
    }
  }
  void tick() { ++now_; }

 private:
  using Finished = std::vector<std::vector<int64_t>>;  // by stage, the time of each micro-batch

  int64_t count(const Finished& finished, int64_t stage) const {
    return static_cast<int64_t>(finished[static_cast<size_t>(stage)].size());
  }
  bool done(const Finished& finished, int64_t stage, int64_t micro_batch) const {
    return micro_batch < count(finished, stage) &&
           finished[static_cast<size_t>(stage)][static_cast<size_t>(micro_batch)] <= now_;
  }
  bool forward_ready(int64_t stage) const {
    const int64_t next = count(forward_, stage);
    return next < m_ && (stage == 0 || done(forward_, stage - 1, next));
  }
  bool input_ready(int64_t stage) const {
    const int64_t next = count(input_, stage);
    return next < m_ && done(forward_, stage, next) && (stage + 1 == 2 * p_ || done(input_, stage + 1, next));
  }

  int64_t p_;
  int64_t m_;
  int64_t now_ = 0;
  Finished forward_;
  Finished input_;
  std::vector<int64_t> weights_;  // done, by stage
  std::vector<int64_t> held_;     // activations, by rank
};

}  // namespace

Schedule zero_bubble_v(int64_t ranks, int64_t micro_batches) {
  Schedule schedule{.name = "zbv", .micro_batches = micro_batches, .rank_of_stage = {}, .actions = {}};
  for (int64_t stage = 0; stage < 2 * ranks; ++stage) {
    schedule.rank_of_stage.push_back(std::min(stage, 2 * ranks - 1 - stage));
  }
  schedule.actions.resize(static_cast<size_t>(ranks));
  Clock clock(ranks, micro_batches);
  const int64_t all = 6 * micro_batches * ranks;
  int64_t done = 0;
  for (int64_t tick = 0; done < all; ++tick) {
    require(tick < 4 * all + 4 * ranks, "zbv: the clock stands still after {} of {} actions", done, all);
    std::vector<std::optional<Action>> chosen;
    for (int64_t r = 0; r < ranks; ++r) {
      chosen.push_back(clock.choose(r));
    }
    for (int64_t r = 0; r < ranks; ++r) {
      if (const auto& action = chosen[static_cast<size_t>(r)]) {
        clock.take(r, *action);
        schedule.actions[static_cast<size_t>(r)].push_back(*action);
        ++done;
      }
    }
    clock.tick();
  }
  return schedule;
}

}  // namespace tetra
