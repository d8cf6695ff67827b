#include "mesh/mesh.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "tests/mesh/ranks.h"

namespace tetra {
namespace {

// Coordinates by nested counting, independent of any division.
std::vector<Coordinates> count_up(const Degrees& d) {
  std::vector<Coordinates> all;
  for (int pp = 0; pp < d.pp; ++pp)
    for (int dr = 0; dr < d.dp_replicate; ++dr)
      for (int ds = 0; ds < d.dp_shard; ++ds)
        for (int cp = 0; cp < d.cp; ++cp)
          for (int sp = 0; sp < d.sp; ++sp)
            for (int tp = 0; tp < d.tp; ++tp)
              all.push_back({pp, dr, ds, cp, sp, tp});
  return all;
}

const std::vector<Degrees> kCases = {
    {},
    {.tp = 4},
    {.dp_replicate = 2, .tp = 2},
    {.pp = 2, .dp_replicate = 3, .tp = 2},
    {.dp_shard = 3, .cp = 2, .sp = 1, .tp = 2, .ep = 2},
    {.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 3, .sp = 2, .tp = 1, .ep = 4},
    {.pp = 1, .dp_replicate = 3, .dp_shard = 5, .ep = 5},
    {.pp = 3, .dp_replicate = 1, .dp_shard = 3, .cp = 1, .sp = 3, .tp = 3, .ep = 3},
    {.dp_shard = 4, .ep = 2},
};

TEST(Mesh, RanksAndCoordinatesAgreeWithCounting) {
  for (const Degrees& degrees : kCases) {
    const Mesh mesh(degrees);
    const auto expected = count_up(degrees);
    ASSERT_EQ(mesh.world_size(), static_cast<int>(expected.size()));
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      EXPECT_EQ(mesh.coordinates(rank), expected[static_cast<size_t>(rank)]);
      EXPECT_EQ(mesh.rank_at(expected[static_cast<size_t>(rank)]), rank);
      for (Axis axis : kAxes) {
        EXPECT_EQ(mesh.coordinate(rank, axis), expected[static_cast<size_t>(rank)][static_cast<size_t>(axis)]);
      }
    }
  }
}

std::vector<int> where(const Degrees& degrees, const std::function<bool(const Coordinates&)>& holds) {
  std::vector<int> ranks;
  const auto all = count_up(degrees);
  for (size_t r = 0; r < all.size(); ++r) {
    if (holds(all[r])) {
      ranks.push_back(static_cast<int>(r));
    }
  }
  return ranks;
}

bool equal_on(const Coordinates& a, const Coordinates& b, const std::vector<int>& axes) {
  return std::all_of(axes.begin(), axes.end(), [&](int i) { return a[i] == b[i]; });
}

TEST(Mesh, AxisGroupsAreTheRanksThatDifferThereAlone) {
  for (const Degrees& degrees : kCases) {
    const Mesh mesh(degrees);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const Coordinates own = count_up(degrees)[static_cast<size_t>(rank)];
      for (int a = 0; a < kAxisCount; ++a) {
        std::vector<int> others;
        for (int i = 0; i < kAxisCount; ++i) {
          if (i != a) {
            others.push_back(i);
          }
        }
        EXPECT_EQ(mesh.members(rank, kAxes[a]),
                  where(degrees, [&](const Coordinates& c) { return equal_on(own, c, others); }));
      }
    }
  }
}

TEST(Mesh, FlatGroupsMatchTheirDefinition) {
  enum { pp, dr, ds, cp, sp, tp };
  for (const Degrees& d : kCases) {
    const Mesh mesh(d);
    const auto index = [&](const Coordinates& c) { return c[ds] * d.cp * d.sp + c[cp] * d.sp + c[sp]; };
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const Coordinates own = count_up(d)[static_cast<size_t>(rank)];
      const auto same = [&](std::vector<int> axes) {
        return where(d, [&](const Coordinates& c) { return equal_on(own, c, axes); });
      };
      EXPECT_EQ(mesh.members(rank, Flat::world), same({}));
      EXPECT_EQ(mesh.members(rank, Flat::dp), same({pp, cp, sp, tp}));
      EXPECT_EQ(mesh.members(rank, Flat::fsdp), same({pp, dr, tp}));
      EXPECT_EQ(mesh.members(rank, Flat::grad), same({pp, tp}));
      EXPECT_EQ(mesh.members(rank, Flat::ep), where(d, [&](const Coordinates& c) {
                  return equal_on(own, c, {pp, dr, tp}) && index(c) / d.ep == index(own) / d.ep;
                }));
      EXPECT_EQ(mesh.members(rank, Flat::expert_grad), where(d, [&](const Coordinates& c) {
                  return equal_on(own, c, {pp, tp}) && index(c) % d.ep == index(own) % d.ep;
                }));
    }
  }
}

TEST(Mesh, ExpertGroupsTileGrad) {
  for (const Degrees& d : kCases) {
    const Mesh mesh(d);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const auto ep = mesh.members(rank, Flat::ep);
      EXPECT_EQ(static_cast<int64_t>(ep.size()), d.ep);
      std::vector<int> tiled;
      for (int member : ep) {
        const auto column = mesh.members(member, Flat::expert_grad);
        tiled.insert(tiled.end(), column.begin(), column.end());
      }
      std::sort(tiled.begin(), tiled.end());
      EXPECT_EQ(tiled, mesh.members(rank, Flat::grad));
    }
  }
}

TEST(Mesh, EpIsTheInnermostPartOfFsdp) {
  const Mesh mesh({.dp_shard = 4, .ep = 2});
  EXPECT_EQ(mesh.members(2, Flat::ep), (std::vector<int>{2, 3}));
  EXPECT_EQ(mesh.members(2, Flat::expert_grad), (std::vector<int>{0, 2}));
}

TEST(Mesh, RefusesRanksAndCoordinatesOutside) {
  const Mesh mesh({.tp = 2});
  expect_in(message_of([&] { mesh.coordinates(2); }), "rank 2 is not in a mesh of 2 ranks");
  expect_in(message_of([&] { mesh.rank_at({0, 0, 0, 0, 0, 2}); }), "coordinate 2 of axis tp");
  expect_in(message_of([] { Mesh({.tp = 0}); }), "tp_size");
}

}  // namespace
}  // namespace tetra
