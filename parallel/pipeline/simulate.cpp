#include "parallel/pipeline/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "kernels/error.h"

namespace tetra {
namespace {

using Key = std::tuple<Work, int64_t, int64_t>;

class Simulation {
 public:
  Simulation(const Schedule& schedule, const ScheduleCosts& costs) : schedule_(schedule), costs_(costs) {
    require(costs.stage_weights.empty() || static_cast<int64_t>(costs.stage_weights.size()) == schedule.stages(),
            "{} stage weights for {} stages", costs.stage_weights.size(), schedule.stages());
    timeline_.actions.resize(schedule.actions.size());
  }

  Timeline run() {
    std::vector<size_t> next(schedule_.actions.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < next.size(); ++r) {
        while (next[r] < schedule_.actions[r].size() && try_action(r, schedule_.actions[r][next[r]])) {
          ++next[r];
          moved = true;
        }
      }
    }
    return finish();
  }

 private:
  double duration(const Action& action) const {
    const double share = costs_.stage_weights.empty()
                             ? static_cast<double>(schedule_.ranks()) / static_cast<double>(schedule_.stages())
                             : costs_.stage_weights[static_cast<size_t>(action.stage)];
    switch (action.work) {
      case Work::forward:
        return share * costs_.forward;
      case Work::backward:
        return share * (costs_.input_gradient + costs_.weight_gradient);
      case Work::input_gradient:
        return share * costs_.input_gradient;
      default:
        return share * costs_.weight_gradient;
    }
  }

  // When the neighbour's part has arrived; below 0 while it is not known.
  double arrival(const Action& action) const {
    const bool forward = action.work == Work::forward;
    const int64_t from = forward ? action.stage - 1 : action.stage + 1;
    if (action.work == Work::weight_gradient || from < 0 || from >= schedule_.stages()) {
      return 0;
    }
    const auto end = [&](Work work) {
      const auto found = ends_.find({work, from, action.micro_batch});
      return found == ends_.end() ? -1.0 : found->second;
    };
    const double done = forward ? end(Work::forward) : std::max(end(Work::backward), end(Work::input_gradient));
    const bool elsewhere = schedule_.rank_of_stage[static_cast<size_t>(from)] != schedule_.rank_of(action);
    return done < 0 ? done : done + (elsewhere ? costs_.message : 0);
  }

  bool try_action(size_t rank, const Action& action) {
    const double ready = arrival(action);
    if (ready < 0) {
      return false;
    }
    auto& mine = timeline_.actions[rank];
    const double start = std::max(ready, mine.empty() ? 0.0 : mine.back().end);
    const double end = start + duration(action);
    mine.push_back({action, start, end});
    ends_[{action.work, action.stage, action.micro_batch}] = end;
    return true;
  }

  Timeline finish() {
    for (const auto& mine : timeline_.actions) {
      double busy = 0;
      int64_t held = 0;
      int64_t most = 0;
      for (const TimedAction& timed : mine) {
        busy += timed.end - timed.start;
        const Work work = timed.action.work;
        held += work == Work::forward ? 1 : work == Work::input_gradient ? 0 : -1;
        most = std::max(most, held);
      }
      timeline_.makespan = std::max(timeline_.makespan, mine.empty() ? 0.0 : mine.back().end);
      timeline_.idle.push_back(-busy);
      timeline_.peak_held.push_back(most);
    }
    for (double& idle : timeline_.idle) {
      idle += timeline_.makespan;
    }
    return std::move(timeline_);
  }

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  Timeline timeline_;
  std::map<Key, double> ends_;
};

}  // namespace

double Timeline::bubble() const {
  const double all = makespan * static_cast<double>(actions.size());
  return all == 0 ? 0 : std::accumulate(idle.begin(), idle.end(), 0.0) / all;
}

Timeline simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  check_schedule(schedule);
  return Simulation(schedule, costs).run();
}

}  // namespace tetra
