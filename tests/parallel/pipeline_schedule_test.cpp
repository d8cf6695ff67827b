// Schedules as data: the published figures, validity for any size, and the first fault of broken ones.

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"

namespace tetra {
namespace {

struct Golden {
  const char* type;
  int64_t ranks, virtual_stages, micro_batches;
  double makespan;
  std::vector<int64_t> peak_held;  // empty: not told
};

// Forward, input and weight gradient take a unit each, a rank's stages together.
const std::vector<Golden> kGoldens = {
    {"gpipe", 4, 1, 8, 33, {8, 8, 8, 8}},
    {"1f1b", 4, 1, 8, 33, {4, 3, 2, 1}},
    {"interleaved", 4, 2, 8, 28.5, {11, 9, 7, 5}},
    {"interleaved", 4, 4, 8, 26.25, {}},
    {"zb-h1", 4, 1, 8, 27, {4, 4, 4, 4}},
    {"gpipe", 8, 1, 64, 213, {}},
    {"1f1b", 8, 1, 64, 213, {8, 7, 6, 5, 4, 3, 2, 1}},
    {"interleaved", 8, 2, 64, 202.5, {}},
    {"interleaved", 8, 4, 64, 197.25, {}},
    {"zb-h1", 8, 1, 64, 199, {8, 8, 8, 8, 8, 8, 8, 8}},
};

TEST(PipelineSchedules, TakeAndHoldWhatIsPublished) {
  for (const Golden& golden : kGoldens) {
    const auto schedule = make_schedule(golden.type, golden.ranks, golden.virtual_stages, golden.micro_batches);
    const Timeline timeline = simulate(schedule);
    EXPECT_DOUBLE_EQ(timeline.makespan, golden.makespan) << golden.type << golden.virtual_stages;
    if (!golden.peak_held.empty()) {
      EXPECT_EQ(timeline.peak_held, golden.peak_held) << golden.type << golden.virtual_stages;
    }
    const double work = 3.0 * static_cast<double>(golden.micro_batches);
    for (const double idle : timeline.idle) {
      EXPECT_DOUBLE_EQ(idle, golden.makespan - work);
    }
    EXPECT_NEAR(timeline.bubble(), 1 - work / golden.makespan, 1e-12);
  }
}

// zbv holds what 1f1b's first rank holds, two stages of half the size for one, and is idle less than any of the others.
TEST(PipelineSchedules, ZbvIsTheLeastIdleAtThatMemory) {
  for (const auto& [p, m] : {std::pair<int64_t, int64_t>{4, 8}, {8, 32}, {8, 64}}) {
    const Timeline zbv = simulate(make_schedule("zbv", p, 2, m));
    EXPECT_LE(*std::max_element(zbv.peak_held.begin(), zbv.peak_held.end()), 2 * p);
    EXPECT_LT(zbv.makespan, simulate(make_schedule("zb-h1", p, 1, m)).makespan);
    EXPECT_LT(zbv.makespan, simulate(make_schedule("interleaved", p, 2, m)).makespan);
  }
}

TEST(PipelineSchedules, AreValidForAnySize) {
  for (int64_t p = 1; p <= 6; ++p) {
    for (int64_t m = 1; m <= 14; ++m) {
      for (const char* type : {"gpipe", "1f1b", "zb-h1"}) {
        EXPECT_NO_THROW(check_schedule(make_schedule(type, p, 1, m))) << type << p << " " << m;
      }
      EXPECT_NO_THROW(check_schedule(make_schedule("zbv", p, 2, m))) << p << " " << m;
      for (int64_t v = 1; v <= 4; ++v) {
        EXPECT_NO_THROW(check_schedule(make_schedule("interleaved", p, v, m))) << p << " " << m << " " << v;
      }
    }
  }
}

TEST(PipelineSchedules, RefuseWhatDoesNotSuit) {
  EXPECT_THROW(make_schedule("1f1b", 4, 2, 8), Error);
  EXPECT_THROW(make_schedule("zbv", 4, 1, 8), Error);
  EXPECT_THROW(make_schedule("pipedream", 4, 1, 8), Error);
  EXPECT_THROW(make_schedule("gpipe", 4, 1, 0), Error);
}

TEST(PipelineSchedules, ReadBackFromText) {
  for (const auto& [type, v] : {std::pair{"1f1b", 1}, std::pair{"interleaved", 2}, std::pair{"zbv", 2}}) {
    const Schedule schedule = make_schedule(type, 3, v, 5);
    const Schedule back = parse_schedule(schedule_csv(schedule), "here");
    EXPECT_EQ(back.actions, schedule.actions);
    EXPECT_EQ(back.rank_of_stage, schedule.rank_of_stage);
    EXPECT_EQ(back.micro_batches, 5);
  }
  const Schedule spaced = parse_schedule("0F0, 0F1,,0B0 ,0B1\r\n\n 1F0,1B0,1F1,1B1\n", "here");
  EXPECT_EQ(spaced.ranks(), 2);
  EXPECT_NO_THROW(check_schedule(spaced));
}

std::string fault(const std::string& csv) {
  try {
    check_schedule(parse_schedule(csv, "s.csv"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PipelineSchedules, NameTheFirstFault) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"0F0,0X0", "s.csv: row 1, column 2: '0X0' is no action"},
      {"0F0,F0", "row 1, column 2: 'F0'"},
      {"0F0,0B0\n2F0,2B0", "no row has stage 1"},
      {"", "there is no action"},
      {"0F0,0B0,0F0\n1F0,1B0", "0F0 is there twice"},
      {"0F0,0B0\n1F0,1B0,0F1", "rank 1 has 0F1, but stage 0 is on rank 0"},
      {"0F0,0F1,0B0\n1F0,1F1,1B0,1B1", "stage 0 has no backward of micro-batch 1"},
      {"0F0,0I0\n1F0,1B0", "stage 0 has no weight gradient of micro-batch 0"},
      {"0F0,0B0,0I0,0W0\n1F0,1B0", "both a whole and a split backward of micro-batch 0"},
      {"0F0,0W0,0I0\n1F0,1B0", "rank 0 waits for ever at its action 1, 0W0, for 0I0"},
      {"0B0,0F0", "rank 0 waits for ever at its action 0, 0B0, for 0F0"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "rank 0 waits for ever at its action 1, 0B0, for 1B0"},
      {"0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0", "stages 0 and 1 take backwards in different orders: micro-batch 0 here, 1 "},
  };
  for (const auto& [csv, words] : cases) {
    EXPECT_NE(fault(csv).find(words), std::string::npos) << csv << ": " << fault(csv);
  }
}

// Valid lists with two neighbours exchanged at random: either still valid, or the fault is found; and what the checker
// lets through, the simulation ends.
TEST(PipelineSchedules, ExchangedNeighboursAreFoundOut) {
  std::mt19937_64 random(7);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    const char* types[] = {"gpipe", "1f1b", "zb-h1", "zbv", "interleaved"};
    const size_t kind = random() % 5;
    Schedule schedule = make_schedule(types[kind], 2 + static_cast<int64_t>(random() % 4), kind >= 3 ? 2 : 1,
                                      1 + static_cast<int64_t>(random() % 8));
    auto& mine = schedule.actions[random() % schedule.actions.size()];
    const size_t at = random() % (mine.size() - 1);
    std::swap(mine[at], mine[at + 1]);
    try {
      check_schedule(schedule);
    } catch (const Error&) {
      ++refused;
      continue;
    }
    const Timeline timeline = simulate(schedule);
    for (size_t r = 0; r < schedule.actions.size(); ++r) {
      EXPECT_EQ(timeline.actions[r].size(), schedule.actions[r].size());
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_LT(refused, 400);
}

TEST(PipelineTimes, FollowCostsMessagesAndWeights) {
  const Schedule schedule = make_schedule("1f1b", 2, 1, 1);
  EXPECT_DOUBLE_EQ(simulate(schedule, {.forward = 2, .input_gradient = 3, .weight_gradient = 4}).makespan, 2 * 9);
  EXPECT_DOUBLE_EQ(simulate(schedule, {.message = 0.5}).makespan, 6 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(simulate(schedule, {.stage_weights = {1, 3}}).makespan, 3 + 9);
  EXPECT_THROW(simulate(schedule, {.stage_weights = {1}}), Error);
}

TEST(PipelinePictures, ShowARowARank) {
  const Timeline timeline = simulate(make_schedule("1f1b", 2, 1, 2));
  EXPECT_EQ(timeline_text(timeline),
            "rank 0   01..aa.bb\n"
            "rank 1   .0aa1bb..\n");
  const Timeline split = simulate(make_schedule("zb-h1", 2, 1, 2));
  EXPECT_EQ(timeline_text(split),
            "rank 0   01.a=b=\n"
            "rank 1   .0a1b==\n");
  const std::string svg = timeline_svg(timeline, "a < b");
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  size_t boxes = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) {
    ++boxes;
  }
  EXPECT_EQ(boxes, 8U);
}

}  // namespace
}  // namespace tetra
