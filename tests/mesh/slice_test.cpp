#include "mesh/slice.h"

#include <gtest/gtest.h>

#include "tests/mesh/ranks.h"

namespace tetra {
namespace {

TEST(Slice, Whole) {
  EXPECT_TRUE(Slice::whole({3, 4}).is_whole());
  EXPECT_EQ(Slice::whole({3, 4}).local_shape(), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(Slice::whole({3, 4}).local_numel(), 12);
  EXPECT_TRUE(Slice::whole({}).is_whole());
  EXPECT_EQ(Slice::whole({}).local_shape(), std::vector<int64_t>{});
  EXPECT_EQ(Slice::whole({}).local_numel(), 1);
  EXPECT_EQ(Slice::whole({0, 5}).local_numel(), 0);
}

TEST(Slice, PartsAlongADim) {
  const Slice slice{.global_shape = {6, 4}, .dim = 0, .ranges = {{1, 2}, {4, 6}}};
  EXPECT_FALSE(slice.is_whole());
  EXPECT_EQ(slice.local_shape(), (std::vector<int64_t>{3, 4}));
  const Slice joined{.global_shape = {6, 4}, .dim = 1, .ranges = {{0, 1}, {1, 4}}};
  EXPECT_TRUE(joined.is_whole());
  const Slice twice{.global_shape = {2}, .dim = 0, .ranges = {{0, 1}, {0, 1}}};
  EXPECT_FALSE(twice.is_whole());
}

TEST(Slice, RefusesRangesOutside) {
  expect_in(message_of([] { (void)Slice{.global_shape = {6}, .dim = 0, .ranges = {{4, 7}}}.local_shape(); }), "[4, 7)");
  expect_in(message_of([] { (void)Slice{.global_shape = {6}, .dim = 0, .ranges = {{4, 3}}}.local_shape(); }), "[4, 3)");
  expect_in(message_of([] { (void)Slice{.global_shape = {6}, .dim = 1, .ranges = {{0, 1}}}.local_shape(); }), "dim 1");
}

TEST(Slice, EvenRangesTile) {
  for (int64_t size : {0, 1, 5, 7, 100}) {
    for (int64_t count : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int64_t i = 0; i < count; ++i) {
        const Range range = even_range(size, count, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.size(), size / count + (i < size % count ? 1 : 0));
        next = range.end;
      }
      EXPECT_EQ(next, size);
    }
  }
  expect_in(message_of([] { even_range(4, 2, 2); }), "part 2 of 2");
}

}  // namespace
}  // namespace tetra
