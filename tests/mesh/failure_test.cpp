// What happens when ranks disagree, fail, or do not come.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "mesh/collectives.h"
#include "tests/mesh/ranks.h"
#include "tests/mesh/values.h"

namespace tetra {
namespace {

using namespace std::chrono_literals;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string failure_of(const WorldOptions& options, const std::function<void(World&)>& body) {
  return message_of([&] { run_local_ranks(static_cast<int>(options.degrees.world_size()), options, body); });
}

/// Runs `call` on all ranks, which must all throw the same Error, and returns its message.
std::string common_error(const WorldOptions& options, const std::function<void(World&, const Group&)>& call) {
  const auto size = static_cast<int>(options.degrees.world_size());
  std::vector<std::string> texts(static_cast<size_t>(size));
  run_local_ranks(size, options, [&](World& world) {
    texts[static_cast<size_t>(world.rank())] = message_of([&] { call(world, world.group(Axis::tp)); });
  });
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts.front());
  }
  return texts.front();
}

WorldOptions debug_options(int size, bool debug) {
  WorldOptions options = tp_options(size);
  options.debug = debug;
  return options;
}

class Mismatch : public testing::TestWithParam<bool> {};  // with and without debug mode

TEST_P(Mismatch, DifferentSizes) {
  const std::string text = common_error(debug_options(3, GetParam()), [](World& world, const Group& group) {
    at::Tensor x = make(samples(0, world.rank() == 1 ? 7 : 5), at::kFloat);
    all_reduce(x, group, "site.a");
  });
  expect_in(text, "ranks 0, 1, 2 make different calls");
  expect_in(text, "rank 0: ");
  expect_in(text, "rank 1: ");
  expect_in(text, "rank 2: ");
  expect_in(text, "all_reduce");
  expect_in(text, "'site.a'");
  expect_in(text, "5");
  expect_in(text, "7");
}

TEST_P(Mismatch, DifferentOperations) {
  const std::string text = common_error(debug_options(4, GetParam()), [](World& world, const Group& group) {
    at::Tensor x = make({1, 2, 3, 4});
    at::Tensor out = make(std::vector<double>(16, 0));
    switch (world.rank()) {
      case 0:
        return all_reduce(x, group, "here");
      case 1:
        return all_gather(out, x, group, "there");
      case 2:
        return barrier(group, "nowhere");
      default:
        return broadcast(x, 0, group, "everywhere");
    }
  });
  expect_in(text, "all_reduce");
  expect_in(text, "all_gather");
  expect_in(text, "barrier");
  expect_in(text, "broadcast");
  expect_in(text, "'there'");
}

TEST_P(Mismatch, DifferentTypesReductionsAndRoots) {
  expect_in(common_error(debug_options(2, GetParam()),
                         [](World& world, const Group& group) {
                           at::Tensor x = make({1}, world.rank() == 0 ? at::kFloat : at::kBFloat16);
                           all_reduce(x, group, "s");
                         }),
            "BFloat16");
  expect_in(common_error(debug_options(2, GetParam()),
                         [](World& world, const Group& group) {
                           at::Tensor x = make({1});
                           all_reduce(x, group, "s", world.rank() == 0 ? ReduceOp::sum : ReduceOp::max);
                         }),
            "max");
  expect_in(common_error(debug_options(2, GetParam()),
                         [](World& world, const Group& group) {
                           at::Tensor x = make({1});
                           broadcast(x, world.rank(), group, "s");
                         }),
            "root 1");
}

TEST_P(Mismatch, SplitsThatDoNotFit) {
  const std::string text = common_error(debug_options(2, GetParam()), [](World& world, const Group& group) {
    at::Tensor in = make({1, 2, 3});
    at::Tensor out = make({0, 0, 0});
    // Rank 0 sends 2 to rank 1, which expects 1.
    const std::vector<int64_t> splits = world.rank() == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 2};
    all_to_all(out, in, group, "s", splits, splits);
  });
  expect_in(text, "splits");
}

TEST_P(Mismatch, TheGroupWorksOnAfterwards) {
  run_local_ranks(2, debug_options(2, GetParam()), [](World& world) {
    const Group& group = world.group(Axis::tp);
    at::Tensor x = make(samples(0, 2 + world.rank()));
    message_of([&] { all_reduce(x, group, "s"); });
    at::Tensor y = make({1});
    all_reduce(y, group, "s");
    EXPECT_EQ(values(y), std::vector<double>{2});
  });
}

INSTANTIATE_TEST_SUITE_P(Debug, Mismatch, testing::Bool());

TEST(Debug, DifferentSitesAndShapesAreSeenToo) {
  const std::string text = common_error(debug_options(2, true), [](World& world, const Group& group) {
    at::Tensor x = make({1, 2, 3, 4}).view({2, 2});
    all_reduce(x, group, world.rank() == 0 ? "forward" : "backward");
  });
  expect_in(text, "rank 0: call 0 all_reduce 'forward' of group tp sum Double [2, 2]");
  expect_in(text, "rank 1: call 0 all_reduce 'backward' of group tp sum Double [2, 2]");
  expect_in(common_error(debug_options(2, true),
                         [](World& world, const Group& group) {
                           at::Tensor x = make({1, 2}).view({1 + world.rank(), 2 - world.rank()});
                           all_reduce(x, group, "s");
                         }),
            "[2, 1]");
}

TEST(Debug, DifferentGroupsWithTheSameRanks) {
  const std::string text = common_error(debug_options(2, true), [](World& world, const Group& group) {
    at::Tensor x = make({1});
    all_reduce(x, world.rank() == 0 ? group : world.group(Flat::world), "s");
  });
  expect_in(text, "group world");
}

TEST(Debug, AgreementChangesAndCountsNothing) {
  run_local_ranks(3, debug_options(3, true), [](World& world) {
    const Group& group = world.group(Axis::tp);
    at::Tensor x = make(samples(world.rank(), 100));
    at::Tensor wide = make(std::vector<double>(300, 0));
    all_reduce(x, group, "s");
    all_gather(wide, x, group, "s");
    reduce_scatter(x, wide, group, "s");
    at::Tensor three = make({1, 2, 3});
    at::Tensor other = make({0, 0, 0});
    all_to_all(other, three, group, "s");
    broadcast(x, 1, group, "s");
    barrier(group, "s");
    all_gather_strings(std::string(static_cast<size_t>(world.rank()), 'x'), group, "s");
    EXPECT_EQ(world.ledger().total().calls, 7);
    EXPECT_EQ(world.ledger().total("tp", "all_gather").calls, 1);
  });
}

TEST(Mismatch, MessagesOfDifferentSizes) {
  const std::string text = common_error(tp_options(2), [](World& world, const Group& group) {
    at::Tensor x = make(samples(0, 3 + world.rank()));
    (world.rank() == 0 ? send_async(x, 1, group, "s") : receive_async(x, 0, group, "s")).wait();
  });
  expect_in(text, "in 3");
  expect_in(text, "in 4");
}

TEST(TimeOut, NamesOperationSiteGroupAndRanks) {
  WorldOptions options = tp_options(4);
  options.timeout = 250ms;
  std::atomic<bool> over = false;
  const std::string text = failure_of(options, [&](World& world) {
    at::Tensor x = make({1});
    if (world.rank() < 2) {
      message_of([&] { all_reduce(x, world.group(Axis::tp), "row_parallel.forward"); });
      over = true;
      all_reduce(x, world.group(Axis::tp), "row_parallel.forward");  // and once more, to report it
    }
    while (!over) {
      std::this_thread::sleep_for(10ms);
    }
    barrier(world.group(Axis::tp), "other");
  });
  expect_in(text,
            "time-out of 0.25 s in all_reduce 'row_parallel.forward' of group tp: ranks 0, 1 came; ranks 2, 3 did not");
}

TEST(TimeOut, ReachesAxisSubGroups) {
  WorldOptions options;
  options.degrees = {.dp_replicate = 2, .tp = 2};
  options.timeout = 200ms;
  std::atomic<bool> seen = false;
  run_local_ranks(4, options, [&](World& world) {
    at::Tensor x = make({1});
    if (world.rank() == 2) {
      const std::string text = message_of([&] { all_reduce(x, world.group(Axis::tp), "tp.site"); });
      EXPECT_EQ(text, "time-out of 0.2 s in all_reduce 'tp.site' of group tp: rank 2 came; rank 3 did not");
      seen = true;
    } else if (world.rank() == 3) {
      while (!seen) {
        std::this_thread::sleep_for(5ms);
      }
    } else {
      all_reduce(x, world.group(Axis::tp), "tp.site");
      EXPECT_EQ(values(x), std::vector<double>{2});
    }
  });
}

TEST(TimeOut, OfAMessage) {
  WorldOptions options = tp_options(2);
  options.timeout = 200ms;
  const std::string text = failure_of(options, [&](World& world) {
    at::Tensor x = make({1});
    if (world.rank() == 0) {
      receive_async(x, 1, world.group(Axis::tp), "stage.input").wait();
    }
  });
  expect_in(text, "rank 0: time-out of 0.2 s in receive 'stage.input' of group tp: rank 0 came; rank 1 did not");
}

TEST(TimeOut, MustBePositive) {
  WorldOptions options;
  options.timeout = 0ms;
  expect_in(message_of([&] { World(options, nullptr); }), "must be positive");
}

TEST(Failure, EndsTheOthersAtOnceWithTheRankAndMessage) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> told = 0;
  const std::string text = failure_of(tp_options(4), [&](World& world) {
    at::Tensor x = make({1});
    if (world.rank() == 2) {
      std::this_thread::sleep_for(50ms);
      throw std::runtime_error("disk full");
    }
    EXPECT_EQ(message_of([&] { all_reduce(x, world.group(Axis::tp), "s"); }), "rank 2: disk full");
    EXPECT_EQ(message_of([&] { world.barrier(); }), "rank 2: disk full");  // later waits too
    ++told;
    throw Error("because of it");
  });
  EXPECT_EQ(text, "rank 2: disk full");
  EXPECT_EQ(told, 3);
  EXPECT_LT(seconds_since(start), 20);
}

TEST(Failure, SeveralAtOnceReportOne) {
  for (int run = 0; run < 20; ++run) {
    const std::string text = failure_of(tp_options(5), [&](World& world) {
      if (world.rank() % 2 == 0) {
        throw Error(fmt::format("broken {}", world.rank()));
      }
      world.barrier();
    });
    EXPECT_TRUE(text == "rank 0: broken 0" || text == "rank 2: broken 2" || text == "rank 4: broken 4") << text;
  }
}

TEST(Failure, ExceptionsThatAreNotStdExceptions) {
  const std::string text = failure_of(tp_options(3), [&](World& world) {
    if (world.rank() == 1) {
      throw 42;
    }
    world.barrier();
  });
  EXPECT_EQ(text, "rank 1: an exception that is not a std::exception");
}

TEST(Failure, UnwindingDoesNotWaitForRanksThatWait) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = failure_of(tp_options(3), [&](World& world) {
    at::Tensor x = make(std::vector<double>(100000, 1));
    const Pending pending = world.rank() == 1 ? all_reduce_async(x, world.group(Axis::tp), "bucket") : Pending();
    if (world.rank() == 1) {
      throw Error("gradient is NaN");
    }
    message_of([&] { receive_async(x, 1, world.group(Axis::tp), "never sent").wait(); });
    throw Error("because of it");
  });
  EXPECT_EQ(text, "rank 1: gradient is NaN");
  EXPECT_LT(seconds_since(start), 20);
}

TEST(Failure, UnwindingLeavesFullOperationsWhole) {
  std::atomic<int> posted = 0;
  const std::string text = failure_of(tp_options(3), [&](World& world) {
    at::Tensor x = make(std::vector<double>(300000, 1));
    Pending pending = all_reduce_async(x, world.group(Axis::tp), "bucket");
    ++posted;
    while (posted < 3) {
      std::this_thread::yield();
    }
    if (world.rank() == 1) {
      throw Error("stop");
    }
    pending.wait();
    EXPECT_EQ(values(x), std::vector<double>(300000, 3));
    world.barrier();
  });
  EXPECT_EQ(text, "rank 1: stop");
}

TEST(Failure, WorldAbortNamesTheRank) {
  const std::string text = failure_of(tp_options(2), [&](World& world) {
    if (world.rank() == 1) {
      world.abort("told to stop");
    }
    world.barrier();
  });
  EXPECT_EQ(text, "rank 1: told to stop");
}

TEST(Failure, DegreesAreCheckedBeforeAnyThreadStarts) {
  bool ran = false;
  WorldOptions options;
  options.degrees.tp = 3;
  expect_in(message_of([&] { run_local_ranks(4, options, [&](World&) { ran = true; }); }), "tp_size 3");
  EXPECT_FALSE(ran);
  expect_in(message_of([&] { run_local_ranks(0, options, [&](World&) {}); }), "at least 1");
}

TEST(Failure, TheNextRunIsNotTouched) {
  failure_of(tp_options(2), [](World&) { throw Error("one"); });
  on_ranks(2, [](World& world, const Group&) { world.barrier(); });
}

}  // namespace
}  // namespace tetra
