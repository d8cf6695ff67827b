#include <algorithm>
#include <set>
#include <tuple>

#include "kernels/error.h"
#include "parallel/pipeline/schedule.h"

namespace tetra {
namespace {

using Key = std::tuple<Work, int64_t, int64_t>;  // work, stage, micro-batch

Key key(const Action& action) {
  return {action.work, action.stage, action.micro_batch};
}

// Each row by itself: known stages and micro-batches, nothing twice.
void check_rows(const Schedule& schedule) {
  std::set<Key> seen;
  for (int64_t r = 0; r < schedule.ranks(); ++r) {
    for (const Action& action : schedule.actions[static_cast<size_t>(r)]) {
      require(action.stage >= 0 && action.stage < schedule.stages() && action.micro_batch >= 0 &&
                  action.micro_batch < schedule.micro_batches,
              "schedule {}: rank {} has {}, but there are {} stages and {} micro-batches", schedule.name, r,
              action_text(action), schedule.stages(), schedule.micro_batches);
      require(schedule.rank_of(action) == r, "schedule {}: rank {} has {}, but stage {} is on rank {}", schedule.name,
              r, action_text(action), action.stage, schedule.rank_of(action));
      require(seen.insert(key(action)).second, "schedule {}: {} is there twice", schedule.name, action_text(action));
    }
  }
  for (int64_t stage = 0; stage < schedule.stages(); ++stage) {
    for (int64_t i = 0; i < schedule.micro_batches; ++i) {
      const bool whole = seen.contains({Work::backward, stage, i});
      const bool input = seen.contains({Work::input_gradient, stage, i});
      const bool weight = seen.contains({Work::weight_gradient, stage, i});
      const auto wanted = [&](bool holds, const std::string& what) {
        require(holds, "schedule {}: stage {} {} micro-batch {}", schedule.name, stage, what, i);
      };
      wanted(seen.contains({Work::forward, stage, i}), "has no forward of");
      wanted(whole || input, "has no backward of");
      wanted(whole || weight, "has no weight gradient of");
      wanted(!whole || (!input && !weight), "has both a whole and a split backward of");
    }
  }
}

// What must be done before: on this rank, or by a message.
std::vector<Key> needs(const Schedule& schedule, const Action& action, const std::set<Key>& done) {
  const auto [work, stage, i] = key(action);
  std::vector<Key> result;
  if (work == Work::forward) {
    if (stage > 0) {
      result.push_back({Work::forward, stage - 1, i});
    }
    return result;
  }
  if (work == Work::weight_gradient) {
    return {{Work::input_gradient, stage, i}};
  }
  result.push_back({Work::forward, stage, i});
  if (stage + 1 < schedule.stages()) {
    const bool split = done.contains({Work::input_gradient, stage + 1, i});
    result.push_back({split ? Work::input_gradient : Work::backward, stage + 1, i});
  }
  return result;
}

std::string text(const Key& k) {
  return action_text({std::get<0>(k), std::get<1>(k), std::get<2>(k)});
}

// Runs the lists without time: whoever can go on does. The first rank that is stuck, when none can, is named.
void check_progress(const Schedule& schedule) {
  std::set<Key> done;
  std::vector<size_t> next(schedule.actions.size(), 0);
  const auto missing = [&](const Action& action) -> std::vector<Key> {
    std::vector<Key> result;
    for (const Key& k : needs(schedule, action, done)) {
      if (!done.contains(k)) {
        result.push_back(k);
      }
    }
    return result;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < next.size(); ++r) {
      const auto& mine = schedule.actions[r];
      while (next[r] < mine.size() && missing(mine[next[r]]).empty()) {
        done.insert(key(mine[next[r]++]));
        moved = true;
      }
    }
  }
  for (size_t r = 0; r < next.size(); ++r) {
    if (next[r] < schedule.actions[r].size()) {
      const Action& stuck = schedule.actions[r][next[r]];
      fail("schedule {}: rank {} waits for ever at its action {}, {}, for {}", schedule.name, r, next[r],
           action_text(stuck), text(missing(stuck).front()));
    }
  }
}

// Messages of one kind from one stage to its neighbour: micro-batches leave in the order in which they are taken.
void check_messages(const Schedule& schedule) {
  const auto order = [&](int64_t stage, bool forward) {
    std::vector<int64_t> result;
    for (const Action& action :
         schedule.actions[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(stage)])]) {
      const bool is_forward = action.work == Work::forward;
      if (action.stage == stage && action.work != Work::weight_gradient && is_forward == forward) {
        result.push_back(action.micro_batch);
      }
    }
    return result;
  };
  for (int64_t stage = 0; stage + 1 < schedule.stages(); ++stage) {
    for (const bool forward : {true, false}) {
      const auto one = order(stage, forward);
      const auto two = order(stage + 1, forward);
      const auto [a, b] = std::mismatch(one.begin(), one.end(), two.begin(), two.end());
      require(a == one.end() && b == two.end(),
              "schedule {}: stages {} and {} take {} in different orders: micro-batch {} here, {} there", schedule.name,
              stage, stage + 1, forward ? "forwards" : "backwards", a == one.end() ? -1 : *a, b == two.end() ? -1 : *b);
    }
  }
}

}  // namespace

void check_schedule(const Schedule& schedule) {
  check_rows(schedule);
  check_progress(schedule);
  check_messages(schedule);
}

}  // namespace tetra
