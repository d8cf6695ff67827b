// Worlds and the collectives layer over processes. See collectives.cpp.

#include "mesh/world.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "mesh/collectives.h"
#include "mesh/fabric.h"
#include "shared_fabric.h"

namespace tetra {
namespace {

WorldOptions options(int64_t tp, bool debug = false) {
  WorldOptions result;
  result.degrees.tp = tp;
  result.degrees.dp_replicate = fabric()->size() / tp;
  result.timeout = std::chrono::seconds(20);
  result.debug = debug;
  return result;
}

TEST(ProcessWorld, GroupsOfTheMeshReduceOverTheirOwnRanks) {
  if (fabric()->size() % 2 != 0) {
    GTEST_SKIP() << "needs an even number of ranks";
  }
  const World world(options(2), fabric());
  for (const Axis axis : {Axis::tp, Axis::dp_replicate}) {
    const Group& group = world.group(axis);
    at::Tensor x = at::full({50000}, static_cast<double>(world.rank() + 1));
    all_reduce(x, group, "test.axis");
    double sum = 0;
    for (int rank : group.ranks()) {
      sum += rank + 1;
    }
    EXPECT_TRUE(at::equal(x, at::full({50000}, sum))) << axis_name(axis);
  }
}

TEST(ProcessWorld, StringsOfAllRanksInOrder) {
  const World world(options(fabric()->size()), fabric());
  const auto all = all_gather_strings(std::string(static_cast<size_t>(world.rank()) * 3, 'a'), world.group(Flat::world),
                                      "test.strings");
  ASSERT_EQ(static_cast<int>(all.size()), world.world_size());
  for (int rank = 0; rank < world.world_size(); ++rank) {
    EXPECT_EQ(all[static_cast<size_t>(rank)], std::string(static_cast<size_t>(rank) * 3, 'a'));
  }
}

TEST(ProcessWorld, DebugModeTellsAllRanksOfAMismatch) {
  const World world(options(fabric()->size(), true), fabric());
  const Group& group = world.group(Axis::tp);
  at::Tensor x = at::zeros({world.rank() == 1 ? 12 : 10});
  try {
    all_reduce(x, group, "test.mismatch");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("10"), std::string::npos) << text;
    EXPECT_NE(text.find("12"), std::string::npos) << text;
    EXPECT_NE(text.find("test.mismatch"), std::string::npos) << text;
  }
}

TEST(ProcessWorld, ErrorsNameTheSite) {
  if (fabric()->name() == "gloo") {
    GTEST_SKIP() << "a time-out breaks Gloo's connections";
  }
  WorldOptions quick = options(fabric()->size());
  quick.timeout = std::chrono::milliseconds(200);
  const World world(quick, fabric());
  const World patient(options(fabric()->size()), fabric());
  at::Tensor x = at::zeros({10});
  std::string text;
  if (world.rank() != 0) {
    try {
      all_reduce(x, world.group(Axis::tp), "test.late");
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_NE(text.find("all_reduce at test.late on group 'tp'"), std::string::npos) << text;
  }
  patient.barrier();
  if (world.rank() == 0) {
    all_reduce(x, world.group(Axis::tp), "test.late");
  }
  patient.barrier();
}

}  // namespace
}  // namespace tetra
