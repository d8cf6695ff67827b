// Every operation of a process backend against expected values. Run by mpirun (or with torchrun-style variables) on two
// or more ranks; all ranks run the same tests.

#include <ATen/Dispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cmath>
#include <numeric>
#include <thread>

#include "kernels/error.h"
#include "mesh/backend/ordered_reduce.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"
#include "shared_fabric.h"

namespace tetra {

std::shared_ptr<Fabric>& fabric() {
  static std::shared_ptr<Fabric> instance = make_fabric(read_place(), "cpu");
  return instance;
}

namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<at::Tensor>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

std::vector<int> all_ranks() {
  std::vector<int> ranks(fabric()->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// What rank `rank` brings along: values whose sums round, so that the order of summation shows.
at::Tensor values(int rank, int64_t count, at::ScalarType type, int64_t seed = 1) {
  at::Tensor out = at::empty({count}, at::kDouble);
  double* p = out.data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) {
    const auto mixed = static_cast<uint64_t>((i + 7) * 2654435761 + rank * 40503 + seed * 97);
    p[i] = (static_cast<double>(mixed % 20011) - 10005.0) / (type == at::kLong ? 1 : 37 * (1 + mixed % 5));
  }
  return out.to(type);
}

at::Tensor reduced(int64_t count, at::ScalarType type, ReduceOp op, int64_t seed = 1) {
  Tensors inputs;
  std::vector<const void*> pointers;
  for (int rank : all_ranks()) {
    inputs.push_back(values(rank, count, type, seed));
    pointers.push_back(inputs.back().data_ptr());
  }
  at::Tensor out = at::empty({count}, type);
  ordered_reduce(out.data_ptr(), pointers, count, type, op);
  return out;
}

c10d::AllreduceOptions with(c10d::ReduceOp::RedOpType op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return options;
}

class Collectives : public testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() { group() = fabric()->make_group(all_ranks(), "world", 20s); }
  static void TearDownTestSuite() { group().reset(); }
  static Backend& group() {
    static Backend instance;
    return instance;
  }
  int rank = fabric()->rank();
  int size = fabric()->size();
};
INSTANTIATE_TEST_SUITE_P(Types, Collectives, testing::Values(at::kFloat, at::kBFloat16, at::kLong, at::kDouble),
                         [](const auto& info) { return std::string(toString(info.param)); });

TEST_P(Collectives, AllReduceEqualsTheOrderedSumToTheLastBit) {
  for (int64_t count : {1, 3, 1000, 100003, 700000}) {
    Tensors x = {values(rank, count, GetParam())};
    group()->allreduce(x, {})->wait();
    EXPECT_TRUE(at::equal(x[0], reduced(count, GetParam(), ReduceOp::sum))) << count;
  }
}

TEST_P(Collectives, AllReduceTakesMaxAndMin) {
  for (int64_t count : {5, 100003}) {
    Tensors x = {values(rank, count, GetParam())};
    Tensors y = {x[0].clone()};
    group()->allreduce(x, with(c10d::ReduceOp::MAX))->wait();
    group()->allreduce(y, with(c10d::ReduceOp::MIN))->wait();
    EXPECT_TRUE(at::equal(x[0], reduced(count, GetParam(), ReduceOp::max)));
    EXPECT_TRUE(at::equal(y[0], reduced(count, GetParam(), ReduceOp::min)));
  }
}

TEST_P(Collectives, ReduceScatterGivesThisRanksPartOfTheOrderedSum) {
  for (int64_t part : {1, 77, 50001}) {
    at::Tensor in = values(rank, part * size, GetParam());
    at::Tensor out = at::empty({part}, GetParam());
    group()->_reduce_scatter_base(out, in, {})->wait();
    EXPECT_TRUE(at::equal(out, reduced(part * size, GetParam(), ReduceOp::sum).narrow(0, rank * part, part)));
    EXPECT_TRUE(at::equal(in, values(rank, part * size, GetParam()))) << "the input was changed";
  }
}

TEST_P(Collectives, ReduceScatterIntoItsOwnInput) {
  at::Tensor in = values(rank, 1000 * size, GetParam());
  at::Tensor out = in.narrow(0, rank * 1000, 1000);
  group()->_reduce_scatter_base(out, in, {})->wait();
  EXPECT_TRUE(at::equal(out, reduced(1000 * size, GetParam(), ReduceOp::sum).narrow(0, rank * 1000, 1000)));
}

TEST_P(Collectives, AllGatherJoinsInRankOrder) {
  for (int64_t part : {1, 77, 100001}) {
    at::Tensor in = values(rank, part, GetParam());
    at::Tensor out = at::empty({part * size}, GetParam());
    group()->_allgather_base(out, in, {})->wait();
    for (int p = 0; p < size; ++p) {
      EXPECT_TRUE(at::equal(out.narrow(0, p * part, part), values(p, part, GetParam())));
    }
  }
}

TEST_P(Collectives, AllToAllInEqualParts) {
  at::Tensor in = values(rank, 300 * size, GetParam());
  at::Tensor out = at::empty({300 * size}, GetParam());
  std::vector<int64_t> even;
  group()->alltoall_base(out, in, even, even, {})->wait();
  for (int p = 0; p < size; ++p) {
    EXPECT_TRUE(at::equal(out.narrow(0, p * 300, 300), values(p, 300 * size, GetParam()).narrow(0, rank * 300, 300)));
  }
}

// Rank p sends p + 2q rows of three to rank q: some parts are empty.
TEST_P(Collectives, AllToAllInUnevenParts) {
  std::vector<int64_t> in_splits, out_splits;
  for (int p = 0; p < size; ++p) {
    in_splits.push_back(rank + 2 * p);
    out_splits.push_back(p + 2 * rank);
  }
  const auto total = [](const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); };
  at::Tensor in = values(rank, 3 * total(in_splits), GetParam()).view({-1, 3});
  at::Tensor out = at::empty({total(out_splits), 3}, GetParam());
  group()->alltoall_base(out, in, out_splits, in_splits, {})->wait();
  int64_t row = 0;
  for (int p = 0; p < size; ++p) {
    int64_t before = 0, all = 0;
    for (int q = 0; q < size; ++q) {
      before += q < rank ? p + 2 * q : 0;
      all += p + 2 * q;
    }
    const at::Tensor theirs = values(p, 3 * all, GetParam()).view({-1, 3});
    EXPECT_TRUE(at::equal(out.narrow(0, row, out_splits[p]), theirs.narrow(0, before, out_splits[p]))) << "from " << p;
    row += out_splits[p];
  }
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  for (int64_t count : {1, 5, 100001}) {
    for (int root = 0; root < size; ++root) {
      Tensors x = {values(rank, count, GetParam())};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group()->broadcast(x, options)->wait();
      EXPECT_TRUE(at::equal(x[0], values(root, count, GetParam()))) << count << " from " << root;
    }
  }
}

TEST_P(Collectives, MessagesOfOneTagKeepTheirOrderAndTagsDoNotMix) {
  const int next = (rank + 1) % size;
  const int previous = (rank + size - 1) % size;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<Tensors> out, in;
  for (int i = 0; i < 6; ++i) {
    out.push_back({values(rank, 10 + i * 3000, GetParam(), i)});
    in.push_back({at::zeros({10 + i * 3000}, GetParam())});
    works.push_back(group()->send(out[i], next, i % 2));
  }
  for (int i : {1, 0, 3, 5, 2, 4}) {  // odd tags ahead of even ones, each in order
    works.push_back(group()->recv(in[i], previous, i % 2));
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) {
    (*work)->wait();
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(at::equal(in[i][0], values(previous, 10 + i * 3000, GetParam(), i))) << i;
  }
}

class World : public Collectives {};

// Ranks wait for the same operations in opposite orders, small and large mixed.
TEST_F(World, OperationsMayBeWaitedForInAnyOrder) {
  constexpr int kCount = 8;
  std::vector<Tensors> x(kCount);
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int i = 0; i < kCount; ++i) {
    x[i] = {values(rank, i % 2 ? 100000 : 10, at::kFloat, i)};
    works.push_back(group()->allreduce(x[i], {}));
  }
  if (rank % 2) {
    std::reverse(works.begin(), works.end());
  }
  for (auto& work : works) {
    work->wait();
  }
  for (int i = 0; i < kCount; ++i) {
    EXPECT_TRUE(at::equal(x[i][0], reduced(x[i][0].numel(), at::kFloat, ReduceOp::sum, i))) << i;
  }
}

// A rank that waits in one group does its part in another.
TEST_F(World, GroupsProgressWhileAnotherIsWaitedFor) {
  const Backend other = fabric()->make_group(all_ranks(), "other", 20s);
  Tensors x = {values(rank, 100000, at::kFloat, 1)};
  Tensors y = {values(rank, 100000, at::kFloat, 2)};
  const auto first = group()->allreduce(x, {});
  const auto second = other->allreduce(y, {});
  (rank % 2 ? first : second)->wait();
  (rank % 2 ? second : first)->wait();
  EXPECT_TRUE(at::equal(x[0], reduced(100000, at::kFloat, ReduceOp::sum, 1)));
  EXPECT_TRUE(at::equal(y[0], reduced(100000, at::kFloat, ReduceOp::sum, 2)));
}

TEST_F(World, AnOperationThatNobodyKeepsIsStillDone) {
  Tensors x = {values(rank, 100000, at::kFloat)};
  Tensors kept = {x[0]};
  group()->allreduce(x, {});
  x.clear();
  group()->barrier({})->wait();
  Tensors y = {values(rank, 10, at::kFloat)};
  group()->allreduce(y, {})->wait();
  group()->barrier({})->wait();
  EXPECT_TRUE(at::equal(y[0], reduced(10, at::kFloat, ReduceOp::sum)));
}

TEST_F(World, BarrierWaitsForTheLastRank) {
  group()->barrier({})->wait();
  const auto start = std::chrono::steady_clock::now();
  if (rank == size - 1) {
    std::this_thread::sleep_for(200ms);
  }
  group()->barrier({})->wait();
  EXPECT_GE(std::chrono::steady_clock::now() - start, 190ms);
}

TEST_F(World, SubGroupsOfEvenAndOddRanks) {
  std::vector<int> mine;
  for (int p = rank % 2; p < size; p += 2) {
    mine.push_back(p);
  }
  if (mine.size() < 2) {
    return;
  }
  const Backend half = fabric()->make_group(mine, "half", 20s);
  EXPECT_EQ(half->getSize(), static_cast<int>(mine.size()));
  EXPECT_EQ(half->getRank(), rank / 2);
  Tensors x = {at::full({100000}, static_cast<double>(rank))};
  half->allreduce(x, {})->wait();
  const double sum = std::accumulate(mine.begin(), mine.end(), 0.0);
  EXPECT_TRUE(at::equal(x[0], at::full({100000}, sum)));
}

TEST_F(World, BadArgumentsAreRefusedBeforeAnythingIsSent) {
  Tensors strided = {at::zeros({4, 4}).t()};
  EXPECT_THROW(group()->allreduce(strided, {}), Error);
  Tensors x = {at::zeros({4})};
  EXPECT_THROW(group()->allreduce(x, with(c10d::ReduceOp::PRODUCT)), Error);
  at::Tensor small = at::zeros({size * 4 - 1});
  EXPECT_THROW(group()->_allgather_base(small, x[0], {}), Error);
  EXPECT_THROW(group()->_reduce_scatter_base(x[0], small, {}), Error);
  std::vector<int64_t> wrong(size, 1), none;
  EXPECT_THROW(group()->alltoall_base(small, small, wrong, none, {}), Error);
  EXPECT_THROW(group()->send(x, rank, 0), Error);
  EXPECT_THROW(group()->send(x, size, 0), Error);
  EXPECT_THROW(fabric()->make_group({rank}, "alone", 1s), Error);
  group()->barrier({})->wait();  // and the group still works
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Last but one, since the operation stays unfinished until the late rank comes.
TEST_F(World, TimeOutNamesOperationGroupAndMissingRank) {
  if (fabric()->name() == "gloo") {
    GTEST_SKIP() << "a time-out breaks Gloo's connections";
  }
  const Backend slow = fabric()->make_group(all_ranks(), "slow", 300ms);
  Tensors x = {values(rank, 100000, at::kFloat)};
  if (rank == size - 1) {
    std::this_thread::sleep_for(900ms);
    group()->barrier({})->wait();
    slow->allreduce(x, {})->wait();
  } else {
    const auto work = slow->allreduce(x, {});
    const auto start = std::chrono::steady_clock::now();
    const std::string text = error_of([&] { work->wait(); });
    EXPECT_NEAR(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0.3, 0.25);
    EXPECT_NE(text.find("all_reduce on group 'slow'"), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("no answer from rank {}", size - 1)), std::string::npos) << text;
    group()->barrier({})->wait();
    work->wait(20s);  // the late rank has come: the operation completes after all
  }
  EXPECT_TRUE(at::equal(x[0], reduced(100000, at::kFloat, ReduceOp::sum)));
}

/// For the ranks but 0: what failed, and nothing else.
class FailurePrinter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) {
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", fabric()->rank(), result.file_name(), result.line_number(),
                   result.message());
    }
  }
};

}  // namespace
}  // namespace tetra

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (tetra::fabric() == nullptr || tetra::fabric()->size() < 2) {
    std::fprintf(stderr, "start this with mpirun -n 2 or more\n");
    return 1;
  }
  if (tetra::fabric()->rank() != 0) {  // one rank's report will do; failures of the others show in the exit code
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    listeners.Append(new tetra::FailurePrinter);
    delete listeners.Release(listeners.default_result_printer());
  }
  const int result = RUN_ALL_TESTS();
  if (result != 0) {
    tetra::fabric()->abort("tests failed");
  }
  tetra::fabric().reset();
  return result;
}
