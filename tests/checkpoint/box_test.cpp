#include "train/checkpoint/box.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tetra {
namespace {

std::vector<int32_t> count_up(int64_t n) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST(Box, Intersects) {
  const auto both = intersect({{0, 2}, {4, 4}}, {{3, 0}, {5, 3}});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->text(), "[3:4,2:3]");
  EXPECT_FALSE(intersect({{0, 0}, {4, 4}}, {{4, 0}, {1, 4}}));
  EXPECT_FALSE(intersect({{0, 0}, {4, 4}}, {{1, 1}, {2, 0}}));
  ASSERT_TRUE(intersect({}, {}));
  EXPECT_EQ(intersect({}, {})->numel(), 1);
  EXPECT_EQ(Box{}.text(), "[]");
}

TEST(Box, LiesWithin) {
  EXPECT_TRUE(lies_within({{2}, {3}}, {5}));
  EXPECT_TRUE(lies_within({{5}, {0}}, {5}));
  EXPECT_TRUE(lies_within({}, {}));
  EXPECT_FALSE(lies_within({{3}, {3}}, {5}));
  EXPECT_FALSE(lies_within({{-1}, {3}}, {5}));
  EXPECT_FALSE(lies_within({{0}, {5}}, {5, 1}));
  EXPECT_FALSE(lies_within({{1}, {INT64_MAX}}, {5}));
}

TEST(CopyLoops, JoinWhatIsContiguousOnBothSides) {
  EXPECT_EQ(copy_loops({2, 3, 4}, {12, 4, 1}, {12, 4, 1}, 4).loops.size(), 1u);
  EXPECT_EQ(copy_loops({2, 3, 4}, {12, 4, 1}, {24, 4, 1}, 4).loops.size(), 2u);
  EXPECT_EQ(copy_loops({2, 1, 4}, {4, 99, 1}, {4, 7, 1}, 4).loops.size(), 1u);
  EXPECT_EQ(copy_loops({2, 3}, {3, 1}, {1, 2}, 4).loops.size(), 3u);
  EXPECT_EQ(copy_loops({2, 0, 4}, {12, 4, 1}, {12, 4, 1}, 4).bytes(), 0);
  EXPECT_EQ(copy_loops({}, {}, {}, 8).bytes(), 8);
}

TEST(CopyLoops, TransposeAndCutIntoPieces) {
  const auto from = count_up(6 * 5);
  for (const int64_t piece : {1, 20, 64, 1000}) {
    std::vector<int32_t> to(30, 0);
    const CopyLoops copy = copy_loops({6, 5}, {1, 6}, {5, 1}, 4);
    for (const CopyPiece& part : cut_copy(copy, piece)) {
      run_copy(part.copy, reinterpret_cast<char*>(to.data()) + part.to,
               reinterpret_cast<const char*>(from.data()) + part.from);
    }
    for (size_t row = 0; row < 6; ++row) {
      for (size_t column = 0; column < 5; ++column) {
        ASSERT_EQ(to[column * 6 + row], from[row * 5 + column]) << piece;
      }
    }
  }
}

}  // namespace
}  // namespace tetra
