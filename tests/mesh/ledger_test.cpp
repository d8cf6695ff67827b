#include "mesh/ledger.h"

#include <gtest/gtest.h>

#include "mesh/collectives.h"
#include "tests/mesh/ranks.h"
#include "tests/mesh/values.h"

namespace tetra {
namespace {

TEST(Ledger, TotalsByGroupAndOperation) {
  Ledger ledger;
  ledger.add({"tp", "all_reduce", "a"}, 10);
  ledger.add({"tp", "all_reduce", "b"}, 20);
  ledger.add({"tp", "all_gather", "a"}, 30);
  ledger.add({"grad", "all_reduce", "a"}, 40);
  EXPECT_EQ(ledger.total().bytes, 100);
  EXPECT_EQ(ledger.total("tp").calls, 3);
  EXPECT_EQ(ledger.total("", "all_reduce").bytes, 70);
  EXPECT_EQ(ledger.total("tp", "all_reduce").bytes, 30);
  ledger.add({"tp", "all_reduce", "a"}, 1);
  EXPECT_EQ((ledger.tallies().at({"tp", "all_reduce", "a"}).calls), 2);
  ledger.clear();
  EXPECT_EQ(ledger.total().calls, 0);
}

TEST(Ledger, BytesFollowTheRingFormulas) {
  for (int n : {2, 3, 4, 8}) {
    on_ranks(n, [n](World& world, const Group& group) {
      const int64_t m = 24 * 50 * 4;  // bytes of the full tensor; 24 is divisible by all sizes here
      at::Tensor full = at::empty({24, 50}, at::kFloat);
      at::Tensor other = at::empty({24, 50}, at::kFloat);
      at::Tensor part = at::empty({24 / n, 50}, at::kFloat);
      full.zero_();
      part.zero_();
      const auto counted = [&](const char* operation) { return world.ledger().total("tp", operation); };
      all_reduce(full, group, "site");
      EXPECT_EQ(counted("all_reduce").bytes, 2 * m * (n - 1) / n);
      all_gather(full, part, group, "site");
      EXPECT_EQ(counted("all_gather").bytes, m * (n - 1) / n);
      reduce_scatter(part, full, group, "site");
      EXPECT_EQ(counted("reduce_scatter").bytes, m * (n - 1) / n);
      all_to_all(other, full, group, "site");
      EXPECT_EQ(counted("all_to_all").bytes, m * (n - 1) / n);
      broadcast(full, 1, group, "site");
      EXPECT_EQ(counted("broadcast").bytes, world.rank() == 1 ? m : 0);
      barrier(group, "site");
      EXPECT_EQ(counted("barrier").calls, 1);
      EXPECT_EQ(world.ledger().total().calls, 6);
      EXPECT_EQ(world.ledger().total("grad").calls, 0);
    });
  }
}

TEST(Ledger, UnevenAllToAllAndMessagesCountWhatIsSent) {
  on_ranks(2, [](World& world, const Group& group) {
    // Rank 0 keeps 1 row and sends 3, rank 1 sends 2 and keeps 0.
    const std::vector<int64_t> in = world.rank() == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 0};
    const std::vector<int64_t> out = world.rank() == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{3, 0};
    at::Tensor from = make(std::vector<double>(static_cast<size_t>(in[0] + in[1]), 1));
    at::Tensor to = make(std::vector<double>(static_cast<size_t>(out[0] + out[1]), 0));
    all_to_all(to, from, group, "site", out, in);
    EXPECT_EQ(world.ledger().total("tp", "all_to_all").bytes, world.rank() == 0 ? 24 : 16);
    at::Tensor x = make({1, 2, 3});
    if (world.rank() == 0) {
      send_async(x, 1, group, "site").wait();
    } else {
      receive_async(x, 0, group, "site").wait();
    }
    EXPECT_EQ(world.ledger().total("tp", "send").bytes, world.rank() == 0 ? 24 : 0);
    EXPECT_EQ(world.ledger().total("tp", "receive").calls, world.rank() == 0 ? 0 : 1);
    EXPECT_EQ(world.ledger().total("tp", "receive").bytes, 0);
  });
}

TEST(Ledger, GroupsWithTheSameRanksCountApart) {
  run_local_ranks(2, tp_options(2), [](World& world) {
    at::Tensor x = make({1});
    all_reduce(x, world.group(Axis::tp), "site");
    all_reduce(x, world.group(Flat::world), "site");
    EXPECT_EQ(values(x), std::vector<double>{4});
    EXPECT_EQ(world.group(Axis::tp).backend(), world.group(Flat::world).backend());
    EXPECT_EQ(world.ledger().total("tp").calls, 1);
    EXPECT_EQ(world.ledger().total("world").calls, 1);
  });
}

TEST(DroppedSite, LeavesTheLocalPartAndZeros) {
  on_ranks(2, [](World& world, const Group& group) {
    world.ledger().dropped_site = "gone";
    const double own = world.rank() + 1;
    at::Tensor x = make({own, own});
    at::Tensor wide = make({9, 9, 9, 9});
    at::Tensor narrow = make({9});
    all_reduce(x, group, "gone");
    EXPECT_EQ(values(x), (std::vector<double>{own, own}));
    all_gather(wide, x, group, "gone");
    EXPECT_EQ(values(wide), world.rank() == 0 ? (std::vector<double>{1, 1, 0, 0}) : (std::vector<double>{0, 0, 2, 2}));
    const at::Tensor places = make({10 * own, 10 * own + 1});
    reduce_scatter(narrow, places, group, "gone");
    EXPECT_EQ(values(narrow), std::vector<double>{10 * own + world.rank()});
    at::Tensor exchanged = make({9, 9});
    all_to_all(exchanged, places, group, "gone");
    EXPECT_EQ(values(exchanged), world.rank() == 0 ? (std::vector<double>{10, 0}) : (std::vector<double>{0, 21}));
    broadcast(x, 0, group, "gone");
    EXPECT_EQ(values(x), (std::vector<double>{own, own}));
    if (world.rank() == 0) {
      send_async(x, 1, group, "gone").wait();
    } else {
      receive_async(x, 0, group, "gone").wait();
      EXPECT_EQ(values(x), (std::vector<double>{0, 0}));
    }
    barrier(group, "gone");
    EXPECT_TRUE(world.ledger().tallies().empty());
    at::Tensor kept = make({own});
    all_reduce(kept, group, "kept");
    EXPECT_EQ(values(kept), std::vector<double>{3});
  });
}

}  // namespace
}  // namespace tetra
