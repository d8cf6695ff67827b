#include "train/text/shuffle.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/error.h"

namespace tetra {
namespace {

std::vector<uint64_t> order(uint64_t seed, uint64_t epoch, uint64_t count) {
  std::vector<uint64_t> result(count);
  for (uint64_t i = 0; i < count; ++i) {
    result[i] = shuffled_index(seed, epoch, count, i);
  }
  return result;
}

TEST(Shuffle, IsAPermutation) {
  for (const uint64_t count : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 1000, 4097}) {
    auto got = order(42, 3, count);
    std::sort(got.begin(), got.end());
    std::vector<uint64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(got, all) << count;
  }
}

TEST(Shuffle, DependsOnSeedEpochAndCount) {
  const auto base = order(42, 0, 100);
  EXPECT_EQ(base, order(42, 0, 100));
  EXPECT_NE(base, order(43, 0, 100));
  EXPECT_NE(base, order(42, 1, 100));
  auto longer = order(42, 0, 101);
  longer.pop_back();
  EXPECT_NE(base, longer);
}

// Resumed runs rely on these: a change of the order is a change of every run's data.
TEST(Shuffle, GoldenOrder) {
  EXPECT_EQ(order(42, 0, 10), (std::vector<uint64_t>{7, 5, 3, 0, 8, 9, 1, 6, 4, 2}));
  EXPECT_EQ(order(42, 1, 10), (std::vector<uint64_t>{8, 7, 3, 9, 1, 0, 4, 5, 6, 2}));
  EXPECT_EQ(shuffled_index(7, 123456789012, 1000000007, 999999999), 406813234u);
}

TEST(Shuffle, SmallCountsReachEveryOrder) {
  std::map<std::vector<uint64_t>, int> seen;
  for (uint64_t epoch = 0; epoch < 6000; ++epoch) {
    ++seen[order(1, epoch, 3)];
  }
  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [unused, times] : seen) {
    EXPECT_NEAR(times, 1000, 200);
  }
}

// Each sample is equally likely at each place: mean and correlation with the place stay within five standard
// deviations.
TEST(Shuffle, LooksRandom) {
  const uint64_t count = 1000;
  double correlation = 0;
  double first = 0;
  for (uint64_t epoch = 0; epoch < 40; ++epoch) {
    const auto got = order(9, epoch, count);
    first += static_cast<double>(got[0]);
    for (uint64_t i = 0; i < count; ++i) {
      correlation += (static_cast<double>(got[i]) - 499.5) * (static_cast<double>(i) - 499.5);
    }
  }
  const double variance = (count * count - 1.0) / 12.0;
  EXPECT_NEAR(first / 40, 499.5, 5 * std::sqrt(variance / 40));
  EXPECT_NEAR(correlation / (40 * count * variance), 0.0, 5 / std::sqrt(40.0 * count));
}

TEST(Shuffle, HugeCounts) {
  const uint64_t count = (uint64_t{1} << 63) + 12345;
  const uint64_t a = shuffled_index(1, 0, count, 0);
  const uint64_t b = shuffled_index(1, 0, count, count - 1);
  EXPECT_LT(a, count);
  EXPECT_LT(b, count);
  EXPECT_NE(a, b);
  EXPECT_LT(shuffled_index(1, 0, ~uint64_t{0}, 5), ~uint64_t{0});
}

TEST(Shuffle, RefusesPlacesThatAreNotThere) {
  EXPECT_THROW(shuffled_index(1, 0, 5, 5), Error);
  EXPECT_THROW(shuffled_index(1, 0, 0, 0), Error);
}

}  // namespace
}  // namespace tetra
