#include "mesh/world.h"

#include <barrier>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mesh/backend/local.h"
#include "mesh/collectives.h"
#include "tests/mesh/ranks.h"
#include "tests/mesh/values.h"

namespace tetra {
namespace {

TEST(World, OfOneNeedsNoFabric) {
  const World world(WorldOptions{}, nullptr);
  EXPECT_EQ(world.world_size(), 1);
  EXPECT_TRUE(world.is_main_process() && world.is_local_main_process() && world.is_last_process());
  world.barrier();
  for (Axis axis : kAxes) {
    EXPECT_EQ(world.group(axis).size(), 1);
    EXPECT_EQ(world.group(axis).name(), axis_name(axis));
  }
  WorldOptions two;
  two.degrees.tp = 2;
  expect_in(message_of([&] { World(two, nullptr); }), "there are 1 ranks");
}

TEST(World, OneRankRunsOnTheCallingThread) {
  const auto caller = std::this_thread::get_id();
  run_local_ranks(1, WorldOptions{}, [&](World& world) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_FALSE(world.group(Flat::world).backend());
  });
}

TEST(World, GroupsMatchTheMesh) {
  WorldOptions options;
  options.degrees = {.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .sp = 1, .tp = 2, .ep = 2};
  run_local_ranks(8, options, [](World& world) {
    const auto check = [&](const Group& group, const std::vector<int>& members, const char* name) {
      EXPECT_EQ(group.name(), name);
      EXPECT_EQ(group.ranks(), members);
      EXPECT_EQ(group.ranks()[static_cast<size_t>(group.rank())], world.rank());
      EXPECT_EQ(static_cast<bool>(group.backend()), members.size() > 1);
      at::Tensor x = make({double(world.rank())});
      all_reduce(x, group, "sum of ranks");
      double sum = 0;
      for (int member : members) {
        sum += member;
      }
      EXPECT_EQ(values(x), std::vector<double>{sum});
    };
    for (Axis axis : kAxes) {
      check(world.group(axis), world.mesh().members(world.rank(), axis), axis_name(axis));
    }
    for (int f = 0; f < kFlatCount; ++f) {
      const auto flat = static_cast<Flat>(f);
      check(world.group(flat), world.mesh().members(world.rank(), flat), flat_name(flat));
    }
    EXPECT_EQ(world.is_last_process(), world.rank() == 7);
    EXPECT_EQ(world.local_rank(), world.rank());
    EXPECT_EQ(world.local_size(), 8);
  });
}

TEST(World, GroupsWithTheSameRanksShareABackend) {
  WorldOptions options;
  options.degrees = {.dp_replicate = 2, .tp = 2};
  run_local_ranks(4, options, [](World& world) {
    EXPECT_EQ(world.group(Axis::dp_replicate).backend(), world.group(Flat::dp).backend());
    EXPECT_EQ(world.group(Flat::dp).backend(), world.group(Flat::grad).backend());
    EXPECT_NE(world.group(Flat::grad).backend(), world.group(Axis::tp).backend());
    EXPECT_NE(world.group(Flat::world).backend(), world.group(Axis::tp).backend());
  });
}

TEST(World, PrintsOnceOnTheMainProcess) {
  testing::internal::CaptureStdout();
  on_ranks(3, [](World& world, const Group&) { world.print(fmt::format("rank {}", world.rank())); });
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "rank 0\n");
}

TEST(World, CoresAreSharedOut) {
  const int cores = at::get_num_threads();
  on_ranks(2, [&](World&, const Group&) { EXPECT_EQ(at::get_num_threads(), std::max(1, cores / 2)); });
  on_ranks(64, [&](World&, const Group&) { EXPECT_EQ(at::get_num_threads(), std::max(1, cores / 64)); });
  EXPECT_EQ(at::get_num_threads(), cores);
  int later = 0;
  std::thread([&] { later = at::get_num_threads(); }).join();
  EXPECT_EQ(later, cores);
}

// Gradient buckets are reduced while backward goes on: whoever posts the next one does its part of those before.
TEST(World, PostingHelpsOlderOperationsAlong) {
  std::barrier<> posted(3);
  on_ranks(3, [&](World&, const Group& group) {
    at::Tensor first = make(std::vector<double>(100000, 1));
    at::Tensor second = make(std::vector<double>(100000, 1));
    std::vector<at::Tensor> tensors = {first};
    const auto older = group.backend()->allreduce(tensors, c10d::AllreduceOptions());
    posted.arrive_and_wait();
    EXPECT_FALSE(older->isCompleted());
    posted.arrive_and_wait();
    tensors = {second};
    const auto later = group.backend()->allreduce(tensors, c10d::AllreduceOptions());
    posted.arrive_and_wait();
    EXPECT_TRUE(older->isCompleted());
    EXPECT_EQ(values(first), std::vector<double>(100000, 3));
    later->wait();
    EXPECT_EQ(values(second), std::vector<double>(100000, 3));
  });
}

TEST(World, TwoWorldsOnOneFabricDoNotMix) {
  const auto fabrics = make_local_fabrics(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      World first(tp_options(2), fabrics[static_cast<size_t>(rank)]);
      World second(tp_options(2), fabrics[static_cast<size_t>(rank)]);
      at::Tensor x = make({1});
      at::Tensor y = make({10, 10});
      // Each rank begins with another world.
      Pending a = all_reduce_async(x, (rank == 0 ? first : second).group(Axis::tp), "a");
      at::Tensor z = make({1});
      Pending b = all_reduce_async(z, (rank == 0 ? second : first).group(Axis::tp), "b");
      EXPECT_NE(first.group(Axis::tp).backend(), second.group(Axis::tp).backend());
      all_reduce(y, first.group(Axis::tp), "c");
      EXPECT_EQ(values(y), (std::vector<double>{20, 20}));
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

TEST(Group, RefusesNonsense) {
  Ledger ledger;
  expect_in(message_of([&] { Group("g", {1, 0}, 0, nullptr, &ledger); }), "not ascending");
  expect_in(message_of([&] { Group("g", {0, 1}, 2, nullptr, &ledger); }), "position 2");
  expect_in(message_of([&] { Group("g", {0, 1}, 0, nullptr, &ledger); }), "no backend");
}

}  // namespace
}  // namespace tetra
