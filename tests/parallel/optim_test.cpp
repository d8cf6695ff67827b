#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "parallel/optim/grad_norm.h"
#include "parallel/optim/schedule.h"

namespace tetra {
namespace {

TEST(Schedule, WarmsUpLinearlyThenFollowsItsType) {
  const Schedule constant{"constant", 2.0, 0.5, 4, 12};
  EXPECT_DOUBLE_EQ(learning_rate(constant, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(constant, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(constant, 100), 2.0);

  const Schedule linear{"linear", 2.0, 0.4, 4, 12};
  EXPECT_DOUBLE_EQ(learning_rate(linear, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 8), 1.2);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 12), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 99), 0.4);

  const Schedule cosine{"cosine", 2.0, 0.4, 0, 8};
  EXPECT_NEAR(learning_rate(cosine, 2), 0.4 + 0.8 * (1 + std::cos(std::numbers::pi / 4)), 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 4), 1.2);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 8), 0.4);
  EXPECT_THROW(learning_rate({"polynomial", 1, 0, 0, 1}, 1), Error);
}

TEST(Clip, IsTorchsFactorAndNeverAboveOne) {
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
}

}  // namespace
}  // namespace tetra
