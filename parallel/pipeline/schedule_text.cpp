#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "kernels/error.h"
#include "parallel/pipeline/schedule.h"

namespace tetra {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\"");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\"") - first + 1);
}

std::optional<Action> parse_action(const std::string& text) {
  Action action;
  const char* end = text.data() + text.size();
  const auto stage = std::from_chars(text.data(), end, action.stage);
  if (stage.ec != std::errc() || stage.ptr == end) {
    return std::nullopt;
  }
  const std::string letters = "FBIW";
  const size_t work = letters.find(*stage.ptr);
  const auto micro_batch = std::from_chars(stage.ptr + 1, end, action.micro_batch);
  if (work == std::string::npos || micro_batch.ec != std::errc() || micro_batch.ptr != end) {
    return std::nullopt;
  }
  action.work = static_cast<Work>(work);
  return action;
}

constexpr int64_t kMostStages = 1 << 16;

}  // namespace

Schedule parse_schedule(const std::string& csv, const std::string& origin) {
  Schedule schedule{.name = origin, .micro_batches = 0, .rank_of_stage = {}, .actions = {}};
  std::istringstream rows(csv);
  for (std::string row; std::getline(rows, row);) {
    if (trimmed(row).empty()) {
      continue;
    }
    const auto rank = static_cast<int64_t>(schedule.actions.size());
    auto& mine = schedule.actions.emplace_back();
    std::istringstream cells(row);
    int64_t column = 0;
    for (std::string cell; std::getline(cells, cell, ',');) {
      ++column;
      if (trimmed(cell).empty()) {  // idle
        continue;
      }
      const auto action = parse_action(trimmed(cell));
      require(
          action && action->stage >= 0 && action->stage < kMostStages && action->micro_batch >= 0,
          "{}: row {}, column {}: '{}' is no action; write 3F0 for the forward of stage 3 and micro-batch 0, with B "
          "for backward, I for input gradient, W for weight gradient",
          origin, rank + 1, column, trimmed(cell));
      mine.push_back(*action);
      schedule.micro_batches = std::max(schedule.micro_batches, action->micro_batch + 1);
      if (action->stage >= schedule.stages()) {
        schedule.rank_of_stage.resize(static_cast<size_t>(action->stage) + 1, -1);
      }
      int64_t& owner = schedule.rank_of_stage[static_cast<size_t>(action->stage)];
      owner = owner == -1 ? rank : owner;
    }
  }
  require(schedule.micro_batches > 0, "{}: there is no action in it", origin);
  const auto missing = std::find(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), -1);
  require(missing == schedule.rank_of_stage.end(), "{}: no row has stage {}", origin,
          missing - schedule.rank_of_stage.begin());
  return schedule;
}

std::string schedule_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& mine : schedule.actions) {
    for (size_t i = 0; i < mine.size(); ++i) {
      text += i == 0 ? "" : ",";
      text += action_text(mine[i]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace tetra
