#include "mesh/degrees.h"

#include <gtest/gtest.h>

#include "tests/mesh/ranks.h"

namespace tetra {
namespace {

std::string refusal(const Degrees& degrees, int64_t world_size) {
  return message_of([&] { check_degrees(degrees, world_size); });
}

TEST(Degrees, DefaultIsOneRank) {
  EXPECT_EQ(Degrees{}.world_size(), 1);
  check_degrees({}, 1);
}

TEST(Degrees, ProductCountsAllAxesButEp) {
  const Degrees degrees{.pp = 2, .dp_replicate = 3, .dp_shard = 4, .cp = 5, .sp = 6, .tp = 7, .ep = 8};
  EXPECT_EQ(degrees.world_size(), 2 * 3 * 4 * 5 * 6 * 7);
  check_degrees(degrees, degrees.world_size());
}

TEST(Degrees, BelowOneNamesFieldAndValue) {
  EXPECT_EQ(refusal({.tp = 0}, 1), "tp_size is 0; it must be at least 1");
  EXPECT_EQ(refusal({.dp_shard = -3}, 1), "dp_shard_size is -3; it must be at least 1");
  EXPECT_EQ(refusal({.ep = 0}, 1), "ep_size is 0; it must be at least 1");
}

TEST(Degrees, WrongProductSaysWhatWouldWork) {
  const std::string text = refusal({.dp_replicate = 2, .tp = 3}, 8);
  expect_in(text, "dp_replicate_size 2");
  expect_in(text, "tp_size 3");
  expect_in(text, "= 6, but there are 8 ranks");
  expect_in(text, "use 6 ranks");
  const std::string changeable = refusal({.dp_replicate = 2, .tp = 2}, 8);
  expect_in(changeable, "dp_replicate_size 4");
  expect_in(changeable, "tp_size 4");
  expect_in(changeable, "pp_size 2");
}

TEST(Degrees, EpMustDivideFsdp) {
  const std::string text = refusal({.dp_shard = 2, .cp = 3, .ep = 4}, 6);
  EXPECT_EQ(text, "ep_size 4 does not divide dp_shard_size 2 x cp_size 3 x sp_size 1 = 6; use ep_size 1, 2, 3 or 6");
}

TEST(Degrees, HugeProductsDoNotWrapAround) {
  const int64_t big = int64_t{1} << 32;
  expect_in(refusal({.pp = big, .dp_shard = big, .tp = 2}, 1), "too large");
}

}  // namespace
}  // namespace tetra
