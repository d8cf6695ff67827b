#include "mesh/collectives.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include <gtest/gtest.h>

#include "tests/mesh/ranks.h"
#include "tests/mesh/values.h"

namespace tetra {
namespace {

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong};

void on_all_sizes(const std::function<void(World&, const Group&)>& body) {
  for (int size = 1; size <= 8; ++size) {
    on_ranks(size, body);
  }
}

std::vector<double> sums(int ranks, int64_t count, int64_t from = 0) {
  std::vector<double> result(static_cast<size_t>(count), 0);
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      result[static_cast<size_t>(i)] += sample(r, from + i);
    }
  }
  return result;
}

// Lengths: none, fewer than ranks, not divisible, and several pieces of work.
TEST(AllReduce, SumOnAnyNumberOfRanks) {
  on_all_sizes([](World& world, const Group& group) {
    for (at::ScalarType type : kTypes) {
      for (int64_t count : {0, 1, 3, 8, 101, 70001}) {
        at::Tensor x = make(samples(world.rank(), count), type);
        all_reduce(x, group, "test");
        EXPECT_EQ(values(x), sums(group.size(), count));
      }
    }
  });
}

TEST(AllReduce, MaxAndMin) {
  on_all_sizes([](World& world, const Group& group) {
    at::Tensor high = make({double(world.rank()), -double(world.rank())}, at::kFloat);
    at::Tensor low = high.clone();
    all_reduce(high, group, "test", ReduceOp::max);
    all_reduce(low, group, "test", ReduceOp::min);
    const double last = group.size() - 1;
    EXPECT_EQ(values(high), (std::vector<double>{last, -0.0}));
    EXPECT_EQ(values(low), (std::vector<double>{0, -last}));
  });
}

TEST(AllReduce, Bf16AccumulatesInFloat) {
  on_ranks(5, [](World& world, const Group& group) {
    at::Tensor x = make(std::vector<double>(1001, world.rank() == 0 ? 256 : 1), at::kBFloat16);
    all_reduce(x, group, "test");
    EXPECT_EQ(values(x), std::vector<double>(1001, 260));
  });
  on_ranks(4, [](World& world, const Group& group) {
    at::Tensor x = make({world.rank() == 0 ? 256. : 1.}, at::kBFloat16);
    all_reduce(x, group, "test");
    EXPECT_EQ(values(x), std::vector<double>{260});
  });
}

TEST(AllReduce, EqualToTheLastBitOnEveryRankAndRun) {
  constexpr int64_t kCount = 150001;
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor first;
    std::mutex mutex;
    for (int run = 0; run < 3; ++run) {
      on_ranks(7, [&](World& world, const Group& group) {
        std::vector<double> own;
        for (int64_t i = 0; i < kCount; ++i) {
          own.push_back(std::sin(static_cast<double>(i * (world.rank() + 1))) * std::exp(i % 17));
        }
        at::Tensor x = make(own, type);
        all_reduce(x, group, "test");
        const std::lock_guard lock(mutex);
        if (!first.defined()) {
          first = x;
        }
        EXPECT_TRUE(equal_bits(first, x));
      });
    }
  }
}

TEST(AllGather, JoinsInRankOrder) {
  on_all_sizes([](World& world, const Group& group) {
    for (at::ScalarType type : kTypes) {
      for (int64_t count : {0, 1, 13, 40001}) {
        std::vector<double> expected;
        for (int r = 0; r < group.size(); ++r) {
          const auto part = samples(r, count);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        at::Tensor out = make(std::vector<double>(expected.size(), -1), type);
        all_gather(out, make(samples(world.rank(), count), type), group, "test");
        EXPECT_EQ(values(out), expected);
      }
    }
  });
}

TEST(AllGather, InPlace) {
  on_ranks(3, [](World& world, const Group& group) {
    at::Tensor out = make(std::vector<double>(30, -1), at::kFloat);
    at::Tensor in = out.narrow(0, 10 * world.rank(), 10);
    in.copy_(make(samples(world.rank(), 10), at::kFloat));
    all_gather(out, in, group, "test");
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(values(out.narrow(0, 10 * r, 10)), samples(r, 10));
    }
  });
}

TEST(ReduceScatter, EachRankHasItsPartOfTheSum) {
  on_all_sizes([](World& world, const Group& group) {
    for (at::ScalarType type : kTypes) {
      for (int64_t count : {0, 1, 13, 30011}) {
        at::Tensor out = make(std::vector<double>(static_cast<size_t>(count), -1), type);
        const at::Tensor in = make(samples(world.rank(), count * group.size()), type);
        reduce_scatter(out, in, group, "test");
        EXPECT_EQ(values(out), sums(group.size(), count, count * world.rank()));
        EXPECT_EQ(values(in), samples(world.rank(), count * group.size()));
      }
    }
  });
}

TEST(AllToAll, EqualParts) {
  on_all_sizes([](World& world, const Group& group) {
    for (at::ScalarType type : kTypes) {
      for (int64_t count : {0, 1, 5, 20011}) {
        std::vector<double> expected;
        for (int r = 0; r < group.size(); ++r) {
          const auto part = samples(r, count, count * world.rank());
          expected.insert(expected.end(), part.begin(), part.end());
        }
        at::Tensor out = make(std::vector<double>(expected.size(), -1), type);
        all_to_all(out, make(samples(world.rank(), count * group.size()), type), group, "test");
        EXPECT_EQ(values(out), expected);
      }
    }
  });
}

// Rank r sends (r + 2 j) % 4 rows of three elements to rank j.
TEST(AllToAll, UnevenParts) {
  on_all_sizes([](World& world, const Group& group) {
    const int n = group.size();
    const auto rows = [](int from, int to) { return int64_t{(from + 2 * to) % 4}; };
    std::vector<int64_t> in_splits, out_splits;
    std::vector<double> in, expected;
    for (int j = 0; j < n; ++j) {
      in_splits.push_back(rows(world.rank(), j));
      out_splits.push_back(rows(j, world.rank()));
      for (int64_t i = 0; i < 3 * in_splits.back(); ++i) {
        in.push_back(100 * world.rank() + 10 * j + static_cast<double>(i));
      }
      for (int64_t i = 0; i < 3 * out_splits.back(); ++i) {
        expected.push_back(100 * j + 10 * world.rank() + static_cast<double>(i));
      }
    }
    at::Tensor out = make(std::vector<double>(expected.size(), -1)).view({-1, 3});
    all_to_all(out, make(in).view({-1, 3}), group, "test", out_splits, in_splits);
    EXPECT_EQ(values(out), expected);
  });
}

TEST(Broadcast, FromEveryRoot) {
  on_all_sizes([](World& world, const Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (int64_t count : {0, 1, 50021}) {
        at::Tensor x = make(samples(world.rank(), count), at::kFloat);
        broadcast(x, root, group, "test");
        EXPECT_EQ(values(x), samples(root, count));
      }
    }
  });
}

TEST(SendReceive, RingWithTagsInAnyOrder) {
  for (int size : {2, 3, 8}) {
    on_ranks(size, [](World& world, const Group& group) {
      const int next = (world.rank() + 1) % group.size();
      const int previous = (world.rank() + group.size() - 1) % group.size();
      std::vector<at::Tensor> in, out;
      std::vector<Pending> pending;
      for (int tag = 0; tag < 3; ++tag) {
        out.push_back(make(samples(10 * tag + world.rank(), 40001)));
        in.push_back(at::empty({40001}, at::kDouble));
      }
      for (int tag : {2, 0, 1}) {
        pending.push_back(receive_async(in[static_cast<size_t>(tag)], previous, group, "test", tag));
      }
      for (int tag : {1, 2, 0}) {
        pending.push_back(send_async(out[static_cast<size_t>(tag)], next, group, "test", tag));
      }
      for (size_t i : {4u, 0u, 5u, 1u, 2u, 3u}) {
        pending[i].wait();
      }
      for (int tag = 0; tag < 3; ++tag) {
        EXPECT_EQ(values(in[static_cast<size_t>(tag)]), samples(10 * tag + previous, 40001));
      }
    });
  }
}

TEST(SendReceive, SameTagArrivesInOrder) {
  on_ranks(2, [](World& world, const Group& group) {
    std::vector<at::Tensor> x;
    std::vector<Pending> pending;
    for (int i = 0; i < 4; ++i) {
      x.push_back(make({world.rank() == 0 ? i : -1.}));
      pending.push_back(world.rank() == 0 ? send_async(x.back(), 1, group, "s")
                                          : receive_async(x.back(), 0, group, "r"));
    }
    for (Pending& p : pending) {
      p.wait();
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(values(x[static_cast<size_t>(i)]), std::vector<double>{double(i)});
    }
  });
}

TEST(Strings, AnyBytesAndLengths) {
  on_all_sizes([](World& world, const Group& group) {
    const auto text_of = [](int r) {
      return std::string(static_cast<size_t>(r * 7), static_cast<char>(r)) + '\0' + "x";
    };
    const auto all = all_gather_strings(text_of(world.rank()), group, "test");
    ASSERT_EQ(static_cast<int>(all.size()), group.size());
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_EQ(all[static_cast<size_t>(r)], text_of(r));
    }
    for (const std::string& empty : all_gather_strings("", group, "test")) {
      EXPECT_EQ(empty, "");
    }
  });
}

TEST(Barrier, NobodyPassesEarly) {
  for (int size : {2, 5, 8}) {
    std::atomic<int> arrived = 0;
    on_ranks(size, [&](World& world, const Group& group) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        barrier(group, "test");
        EXPECT_GE(arrived.load(), round * world.world_size());
        barrier(group, "test");
      }
    });
  }
}

// Large enough for the copies that bypass the caches; places chosen so that every part is looked into.
TEST(Large, CollectivesOfManyMebibytes) {
  on_ranks(3, [](World& world, const Group& group) {
    const int64_t count = 3 * 1000003;
    const auto filled = [&](int64_t size, int rank) {
      at::Tensor x = at::empty({size}, at::kFloat);
      auto* v = static_cast<float*>(x.data_ptr());
      for (int64_t i = 0; i < size; ++i) {
        v[i] = static_cast<float>((i * 31 + rank * 7) % 1009);
      }
      return x;
    };
    const at::Tensor in = filled(count, world.rank());
    at::Tensor sum = in.clone();
    at::Tensor exchanged = at::empty({count}, at::kFloat);
    at::Tensor part = at::empty({count / 3}, at::kFloat);
    at::Tensor gathered = at::empty({3 * count}, at::kFloat);
    all_reduce(sum, group, "s");
    reduce_scatter(part, in, group, "s");
    all_gather(gathered, in, group, "s");
    all_to_all(exchanged, in, group, "s");
    const at::Tensor expected = filled(count, 0).add(filled(count, 1)).add(filled(count, 2));
    EXPECT_TRUE(equal_bits(sum, expected));
    EXPECT_TRUE(equal_bits(part, expected.narrow(0, world.rank() * count / 3, count / 3).contiguous()));
    for (int r = 0; r < 3; ++r) {
      const at::Tensor other = filled(count, r);
      EXPECT_TRUE(equal_bits(gathered.narrow(0, r * count, count), other));
      EXPECT_TRUE(equal_bits(exchanged.narrow(0, r * count / 3, count / 3),
                             other.narrow(0, world.rank() * count / 3, count / 3)));
    }
  });
}

TEST(Async, ManyInFlightWaitedForOutOfOrder) {
  for (int size : {2, 3, 8}) {
    on_ranks(size, [](World& world, const Group& group) {
      constexpr int kCount = 24;
      std::vector<at::Tensor> x;
      std::vector<Pending> pending;
      for (int i = 0; i < kCount; ++i) {
        x.push_back(make(samples(world.rank(), 1000 * (i % 5) + i), at::kFloat));
        pending.push_back(all_reduce_async(x.back(), group, "bucket"));
      }
      for (int i = 0; i < kCount; ++i) {
        const auto at = static_cast<size_t>((7 * i + 3 * world.rank()) % kCount);  // another order on every rank
        pending[at].wait();
        EXPECT_EQ(values(x[at]), sums(group.size(), x[at].numel()));
      }
    });
  }
}

TEST(Async, OutputsOfEveryKindTogether) {
  on_ranks(4, [](World& world, const Group& group) {
    const int64_t count = 20000;
    at::Tensor reduced = make(samples(world.rank(), count), at::kFloat);
    at::Tensor gathered = at::empty({4 * count}, at::kFloat);
    at::Tensor scattered = at::empty({count / 4}, at::kFloat);
    at::Tensor exchanged = at::empty({count}, at::kFloat);
    const at::Tensor in = make(samples(world.rank(), count), at::kFloat);
    Pending a = all_reduce_async(reduced, group, "a");
    Pending b = all_gather_async(gathered, in, group, "b");
    Pending c = reduce_scatter_async(scattered, in, group, "c");
    Pending d = all_to_all_async(exchanged, in, group, "d");
    d.wait();
    b.wait();
    a.wait();
    c.wait();
    EXPECT_EQ(values(reduced), sums(4, count));
    EXPECT_EQ(values(scattered), sums(4, count / 4, world.rank() * count / 4));
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(values(gathered.narrow(0, r * count, count)), samples(r, count));
      EXPECT_EQ(values(exchanged.narrow(0, r * count / 4, count / 4)), samples(r, count / 4, world.rank() * count / 4));
    }
  });
}

TEST(Async, LeavingThePendingWaits) {
  on_ranks(3, [](World& world, const Group& group) {
    at::Tensor x = make(samples(world.rank(), 100000), at::kFloat);
    { const Pending pending = all_reduce_async(x, group, "test"); }
    EXPECT_EQ(values(x), sums(3, 100000));
  });
}

TEST(Arguments, NonContiguousIsRefusedNotCopied) {
  on_ranks(2, [](World&, const Group& group) {
    at::Tensor strided = at::empty({4, 6}).t();
    at::Tensor flat = at::empty({24});
    at::Tensor part = at::empty({12});
    at::Tensor half_strided = at::empty({3, 4}).t();
    const auto refuses = [](const auto& call) { expect_in(message_of(call), "not contiguous"); };
    refuses([&] { all_reduce(strided, group, "s"); });
    refuses([&] { all_gather(strided, part, group, "s"); });
    refuses([&] { all_gather(flat, half_strided, group, "s"); });
    refuses([&] { reduce_scatter(half_strided, flat, group, "s"); });
    refuses([&] { reduce_scatter(part, strided, group, "s"); });
    refuses([&] { all_to_all(strided, flat.view({6, 4}), group, "s"); });
    refuses([&] { broadcast(strided, 0, group, "s"); });
    refuses([&] { send_async(strided, 1 - group.rank(), group, "s"); });
    refuses([&] { receive_async(strided, 1 - group.rank(), group, "s"); });
  });
}

TEST(Arguments, WrongSizesTypesAndPeersAreNamed) {
  on_ranks(2, [](World&, const Group& group) {
    at::Tensor three = at::empty({3});
    at::Tensor two = at::empty({2});
    at::Tensor whole = at::empty({2}, at::kLong);
    at::Tensor complex = at::empty({2}, at::kComplexFloat);
    at::Tensor none;
    expect_in(message_of([&] { all_gather(three, two, group, "place"); }),
              "all_gather 'place' of group tp: out has 3 elements; it needs 2 x 2 = 4");
    expect_in(message_of([&] { reduce_scatter(two, three, group, "place"); }), "in has 3 elements; it needs 2 x 2 = 4");
    expect_in(message_of([&] { all_to_all(two, whole, group, "place"); }), "out is Float, in is Long");
    expect_in(message_of([&] { all_to_all(three, three, group, "place"); }), "dim 0 of out has 3 elements");
    expect_in(message_of([&] { all_to_all(two, two, group, "place"); }), "share memory");
    expect_in(message_of([&] { all_to_all(three, three, group, "place", {1, 1}, {2, 1}); }), "add up to 2");
    expect_in(message_of([&] { all_reduce(complex, group, "place"); }), "ComplexFloat cannot be reduced");
    expect_in(message_of([&] { all_reduce(none, group, "place"); }), "x is undefined");
    expect_in(message_of([&] { broadcast(two, 2, group, "place"); }), "root 2");
    expect_in(message_of([&] { send_async(two, group.rank(), group, "place"); }), "not another position");
    expect_in(message_of([&] { receive_async(two, 5, group, "place"); }), "sender 5");
  });
}

TEST(SizeOne, CopiesAndCountsNothing) {
  World world(WorldOptions{}, nullptr);
  const Group& group = world.group(Axis::tp);
  EXPECT_FALSE(group.backend());
  at::Tensor x = make({1, 2, 3});
  at::Tensor out = at::empty({3}, at::kDouble);
  all_reduce(x, group, "s");
  broadcast(x, 0, group, "s");
  barrier(group, "s");
  EXPECT_EQ(values(x), (std::vector<double>{1, 2, 3}));
  for (const auto& collective : {all_gather, reduce_scatter}) {
    out.zero_();
    collective(out, x, group, "s");
    EXPECT_EQ(values(out), values(x));
  }
  out.zero_();
  all_to_all(out, x, group, "s");
  EXPECT_EQ(values(out), values(x));
  EXPECT_EQ(all_gather_strings("text", group, "s"), std::vector<std::string>{"text"});
  expect_in(message_of([&] { send_async(x, 0, group, "s"); }), "not another position");
  EXPECT_TRUE(world.ledger().tallies().empty());
}

}  // namespace
}  // namespace tetra
