#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "parallel/pipeline/simulate.h"

namespace tetra {
namespace {

char letter(const Action& action) {
  const auto digit = static_cast<char>(action.micro_batch % 10);
  switch (action.work) {
    case Work::forward:
      return static_cast<char>('0' + digit);
    case Work::weight_gradient:
      return '=';
    default:
      return static_cast<char>('a' + digit);
  }
}

const char* colour(Work work) {
  switch (work) {
    case Work::forward:
      return "#9ecae1";
    case Work::backward:
      return "#fdae6b";
    case Work::input_gradient:
      return "#fdd0a2";
    default:
      return "#c7e9c0";
  }
}

// The shortest action gets a column, as far as there is room.
int64_t columns_for(const Timeline& timeline, int64_t most) {
  double shortest = timeline.makespan;
  for (const auto& mine : timeline.actions) {
    for (const TimedAction& timed : mine) {
      if (timed.end > timed.start) {
        shortest = std::min(shortest, timed.end - timed.start);
      }
    }
  }
  return shortest <= 0 ? 1 : std::clamp<int64_t>(std::lround(timeline.makespan / shortest), 1, most);
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return result;
}

}  // namespace

std::string timeline_text(const Timeline& timeline, int64_t columns) {
  const int64_t width = columns_for(timeline, std::max<int64_t>(columns, 1));
  std::string text;
  for (size_t r = 0; r < timeline.actions.size(); ++r) {
    std::string row(static_cast<size_t>(width), '.');
    for (const TimedAction& timed : timeline.actions[r]) {
      const auto column = [&](double time) {
        return static_cast<size_t>(std::lround(time / timeline.makespan * static_cast<double>(width)));
      };
      std::fill(row.begin() + static_cast<int64_t>(column(timed.start)),
                row.begin() + static_cast<int64_t>(column(timed.end)), letter(timed.action));
    }
    text += fmt::format("rank {:<3} {}\n", r, row);
  }
  return text;
}

std::string timeline_svg(const Timeline& timeline, const std::string& title) {
  constexpr double kRow = 28;
  constexpr double kLeft = 60;
  constexpr double kTop = 30;
  const double unit = 1200 / std::max(timeline.makespan, 1e-12);
  const double height = kTop + kRow * static_cast<double>(timeline.actions.size()) + 10;
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{:.0f}" height="{:.0f}" font-family="sans-serif" font-size="11">)"
      "\n"
      R"(<text x="4" y="18" font-size="14">{}</text>)"
      "\n",
      kLeft + 1210, height, escaped(title));
  for (size_t r = 0; r < timeline.actions.size(); ++r) {
    const double y = kTop + kRow * static_cast<double>(r);
    svg += fmt::format(R"(<text x="4" y="{:.1f}">rank {}</text>)", y + 17, r) + "\n";
    for (const TimedAction& timed : timeline.actions[r]) {
      const double x = kLeft + timed.start * unit;
      const double width = (timed.end - timed.start) * unit;
      svg += fmt::format(
          R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="24" fill="{}" stroke="#666" stroke-width="0.5"><title>{}</title></rect>)"
          "\n",
          x, y, width, colour(timed.action.work), action_text(timed.action));
      if (width >= 10) {
        svg += fmt::format(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{}</text>)", x + width / 2, y + 16,
                           timed.action.micro_batch) +
               "\n";
      }
    }
  }
  return svg + "</svg>\n";
}

}  // namespace tetra
