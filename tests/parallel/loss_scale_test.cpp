#include "parallel/optim/loss_scale.h"

#include <gtest/gtest.h>

#include "kernels/error.h"

namespace tetra {
namespace {

void repeat(LossScale& scale, int64_t times, bool overflow) {
  for (int64_t i = 0; i < times; ++i) {
    scale.update(overflow);
  }
}

TEST(LossScale, GrowsAfterAnUnbrokenRunOfGoodSteps) {
  LossScale scale({.initial = 8, .growth_factor = 4, .growth_interval = 3});
  repeat(scale, 2, false);
  EXPECT_EQ(scale.scale(), 8);
  scale.update(false);
  EXPECT_EQ(scale.scale(), 32);
  repeat(scale, 2, false);
  scale.update(true);  // the run starts anew
  EXPECT_EQ(scale.scale(), 16);
  repeat(scale, 2, false);
  EXPECT_EQ(scale.scale(), 16);
  scale.update(false);
  EXPECT_EQ(scale.scale(), 64);
  EXPECT_EQ(scale.skipped(), 1);
}

TEST(LossScale, HysteresisCountsOverflowsUntilGrowthGivesThemBack) {
  LossScale scale({.initial = 64, .growth_interval = 2, .hysteresis = 3});
  scale.update(true);
  scale.update(false);  // a single good step gives nothing back
  scale.update(true);
  EXPECT_EQ(scale.scale(), 64);
  scale.update(true);
  EXPECT_EQ(scale.scale(), 32);
  scale.update(true);  // used up: each overflow backs off
  EXPECT_EQ(scale.scale(), 16);
  repeat(scale, 2, false);
  EXPECT_EQ(scale.scale(), 32);
  repeat(scale, 2, true);
  EXPECT_EQ(scale.scale(), 32);
  scale.update(true);
  EXPECT_EQ(scale.scale(), 16);
  EXPECT_EQ(scale.skipped(), 7);
}

TEST(LossScale, GivesUpAfterManyOverflowsInARowAtTheSmallestScale) {
  LossScale scale({.initial = 3, .growth_interval = 100, .min_scale = 2});
  scale.update(true);
  EXPECT_EQ(scale.scale(), 2);  // 1.5 is below the smallest
  repeat(scale, LossScale::kHopeless - 1, true);
  scale.update(false);
  repeat(scale, LossScale::kHopeless - 1, true);
  try {
    scale.update(true);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("20 times in a row at the smallest scale 2"), std::string::npos);
  }
}

TEST(LossScale, GoesOnFromASavedStateAsIfNeverStopped) {
  const LossScaleOptions options{.initial = 256, .growth_interval = 5, .hysteresis = 2};
  LossScale straight(options);
  for (int stop = 0; stop < 40; ++stop) {
    LossScale resumed(options);
    resumed.restore(straight.state());
    for (int i = 0; i < 15; ++i) {
      LossScale copy(options);
      copy.restore(resumed.state());
      resumed = copy;
      resumed.update(i % 7 == 3 || i % 7 == 4);
    }
    LossScale same = straight;
    for (int i = 0; i < 15; ++i) {
      same.update(i % 7 == 3 || i % 7 == 4);
    }
    EXPECT_EQ(resumed.state(), same.state());
    straight.update(stop % 9 == 0);
  }
}

TEST(LossScale, StaysFiniteAndMayBeConstant) {
  LossScale huge({.initial = 1e308, .growth_interval = 1});
  repeat(huge, 3, false);
  EXPECT_EQ(huge.scale(), 1e308);
  LossScale constant({.initial = 128, .growth_factor = 1, .backoff_factor = 1, .growth_interval = 1});
  repeat(constant, 3, false);
  repeat(constant, 50, true);
  EXPECT_EQ(constant.scale(), 128);
}

TEST(LossScale, RefusesWhatCannotWork) {
  EXPECT_THROW(LossScale({.initial = 0}), Error);
  EXPECT_THROW(LossScale({.initial = 0.5}), Error);  // below min_scale
  EXPECT_THROW(LossScale({.growth_factor = 0.5}), Error);
  EXPECT_THROW(LossScale({.backoff_factor = 2}), Error);
  EXPECT_THROW(LossScale({.growth_interval = 0}), Error);
  EXPECT_THROW(LossScale({.hysteresis = 0}), Error);
  LossScale scale;
  EXPECT_THROW(scale.restore({-1, 0, 1, 0, 0}), Error);
  EXPECT_THROW(scale.restore({1, 0, -1, 0, 0}), Error);
}

}  // namespace
}  // namespace tetra
