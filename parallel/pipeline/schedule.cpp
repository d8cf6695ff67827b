#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <functional>

#include "kernels/error.h"
#include "parallel/pipeline/zero_bubble_v.h"

// p ranks, r a rank, v stages a rank, m micro-batches.

namespace tetra {
namespace {

Schedule empty_schedule(const std::string& name, int64_t p, int64_t v, int64_t m,
                        const std::function<int64_t(int64_t)>& rank_of_stage) {
  Schedule schedule{.name = name, .micro_batches = m, .rank_of_stage = {}, .actions = {}};
  for (int64_t stage = 0; stage < p * v; ++stage) {
    schedule.rank_of_stage.push_back(rank_of_stage(stage));
  }
  schedule.actions.resize(static_cast<size_t>(p));
  return schedule;
}

Schedule gpipe(int64_t p, int64_t m) {
  Schedule schedule = empty_schedule("gpipe", p, 1, m, [](int64_t stage) { return stage; });
  for (int64_t r = 0; r < p; ++r) {
    auto& mine = schedule.actions[static_cast<size_t>(r)];
    for (const Work work : {Work::forward, Work::backward}) {
      for (int64_t i = 0; i < m; ++i) {
        mine.push_back({work, r, i});
      }
    }
  }
  return schedule;
}

// The order in which a rank's stages see micro-batches: p of them through one stage, then through the next one, ...
struct Turn {
  int64_t chunk;  // of the rank's v stages
  int64_t micro_batch;
};
std::vector<Turn> turns_in_rounds(int64_t p, int64_t v, int64_t rounds, bool backward) {
  std::vector<Turn> turns;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t c = 0; c < v; ++c) {
      for (int64_t i = 0; i < p; ++i) {
        turns.push_back({backward ? v - 1 - c : c, round * p + i});
      }
    }
  }
  return turns;
}

// 1f1b is the case of one stage a rank. Rounds are planned whole; micro-batches beyond m are left out of them, which
// takes nothing from the others.
Schedule interleaved(const std::string& name, int64_t p, int64_t v, int64_t m) {
  Schedule schedule = empty_schedule(name, p, v, m, [p](int64_t stage) { return stage % p; });
  const auto forwards = turns_in_rounds(p, v, (m + p - 1) / p, false);
  const auto backwards = turns_in_rounds(p, v, (m + p - 1) / p, true);
  for (int64_t r = 0; r < p; ++r) {
    auto& mine = schedule.actions[static_cast<size_t>(r)];
    const auto add = [&](Work work, const Turn& turn) {
      if (turn.micro_batch < m) {
        mine.push_back({work, turn.chunk * p + r, turn.micro_batch});
      }
    };
    const int64_t ahead = v == 1 ? p - 1 - r : 2 * (p - 1 - r) + (v - 1) * p;
    const size_t warm_up = std::min(static_cast<size_t>(ahead), forwards.size());
    for (size_t i = 0; i < forwards.size() + warm_up; ++i) {
      if (i < forwards.size()) {
        add(Work::forward, forwards[i]);
      }
      if (i >= warm_up) {
        add(Work::backward, backwards[i - warm_up]);
      }
    }
  }
  return schedule;
}

// A rank runs r weight gradients behind its input gradients, so that each holds p micro-batches at most.
Schedule zero_bubble_h1(int64_t p, int64_t m) {
  Schedule schedule = empty_schedule("zb-h1", p, 1, m, [](int64_t stage) { return stage; });
  for (int64_t r = 0; r < p; ++r) {
    auto& mine = schedule.actions[static_cast<size_t>(r)];
    const int64_t warm_up = std::min(p - 1 - r, m);
    int64_t weights = 0;
    for (int64_t i = 0; i < warm_up; ++i) {
      mine.push_back({Work::forward, r, i});
    }
    for (int64_t i = 0; i < m; ++i) {
      if (warm_up + i < m) {
        mine.push_back({Work::forward, r, warm_up + i});
      }
      mine.push_back({Work::input_gradient, r, i});
      if (i + 1 - weights > r) {
        mine.push_back({Work::weight_gradient, r, weights++});
      }
    }
    while (weights < m) {
      mine.push_back({Work::weight_gradient, r, weights++});
    }
  }
  return schedule;
}

}  // namespace

std::string action_text(const Action& action) {
  constexpr std::array<char, 4> kLetters = {'F', 'B', 'I', 'W'};
  return fmt::format("{}{}{}", action.stage, kLetters[static_cast<size_t>(action.work)], action.micro_batch);
}

Schedule make_schedule(const std::string& type, int64_t ranks, int64_t virtual_stages, int64_t micro_batches) {
  require(ranks >= 1 && micro_batches >= 1 && virtual_stages >= 1,
          "a pipeline of {} ranks, {} stages a rank and {} micro-batches: all have to be 1 or more", ranks,
          virtual_stages, micro_batches);
  const auto needs = [&](int64_t stages) {
    require(virtual_stages == stages, "parallelism.pipeline_schedule {} has {} stage{} a rank, not {}; {}", type,
            stages, stages == 1 ? "" : "s", virtual_stages,
            stages == 1 ? "use interleaved, or virtual_stages 1" : "set virtual_stages to 2");
  };
  if (type == "gpipe") {
    needs(1);
    return gpipe(ranks, micro_batches);
  }
  if (type == "1f1b") {
    needs(1);
    return interleaved(type, ranks, 1, micro_batches);
  }
  if (type == "interleaved") {
    return interleaved(type, ranks, virtual_stages, micro_batches);
  }
  if (type == "zb-h1") {
    needs(1);
    return zero_bubble_h1(ranks, micro_batches);
  }
  require(type == "zbv", "parallelism.pipeline_schedule {} is not known; use gpipe, 1f1b, interleaved, zb-h1 or zbv",
          type);
  needs(2);
  return zero_bubble_v(ranks, micro_batches);
}

}  // namespace tetra
