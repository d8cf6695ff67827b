#include "mesh/backend/ordered_reduce.h"

#include <cmath>
#include <limits>

#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>

#include "tests/mesh/ranks.h"
#include "tests/mesh/values.h"

namespace tetra {
namespace {

at::Tensor reduce(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  at::Tensor out = at::empty_like(inputs.front());
  std::vector<const void*> pointers;
  for (const at::Tensor& input : inputs) {
    pointers.push_back(input.const_data_ptr());
  }
  ordered_reduce(out.data_ptr(), pointers, out.numel(), out.scalar_type(), op);
  return out;
}

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt,
                                            at::kLong,  at::kShort,  at::kByte,     at::kChar};

TEST(OrderedReduce, EveryTypeAndOperation) {
  for (at::ScalarType type : kTypes) {
    for (int ranks : {1, 2, 5, 8}) {
      for (int64_t count : {0, 1, 15, 2049, 5000}) {
        std::vector<at::Tensor> inputs;
        for (int r = 0; r < ranks; ++r) {
          inputs.push_back(make(samples(r, count), type));
        }
        const auto sum = values(reduce(inputs, ReduceOp::sum));
        const auto max = values(reduce(inputs, ReduceOp::max));
        const auto min = values(reduce(inputs, ReduceOp::min));
        for (int64_t i = 0; i < count; ++i) {
          double s = 0, high = -1e9, low = 1e9;
          for (int r = 0; r < ranks; ++r) {
            s += sample(r, i);
            high = std::max(high, sample(r, i));
            low = std::min(low, sample(r, i));
          }
          ASSERT_EQ(sum[i], s) << c10::toString(type) << " of " << ranks << " at " << i;
          ASSERT_EQ(max[i], high);
          ASSERT_EQ(min[i], low);
        }
      }
    }
  }
}

TEST(OrderedReduce, Bools) {
  const std::vector<at::Tensor> inputs = {make({0, 0, 1, 1}, at::kBool), make({0, 1, 0, 1}, at::kBool)};
  EXPECT_EQ(values(reduce(inputs, ReduceOp::sum)), (std::vector<double>{0, 1, 1, 1}));
  EXPECT_EQ(values(reduce(inputs, ReduceOp::max)), (std::vector<double>{0, 1, 1, 1}));
  EXPECT_EQ(values(reduce(inputs, ReduceOp::min)), (std::vector<double>{0, 0, 0, 1}));
}

// In bf16 itself 256 + 1 is 256 again.
TEST(OrderedReduce, NarrowTypesAccumulateInFloat) {
  const auto sum_of = [](std::vector<double> parts, at::ScalarType type) {
    std::vector<at::Tensor> inputs;
    for (double part : parts) {
      inputs.push_back(make(std::vector<double>(17, part), type));
    }
    return values(reduce(inputs, ReduceOp::sum));
  };
  EXPECT_EQ(sum_of({256, 1, 1, 1}, at::kBFloat16), std::vector<double>(17, 260));  // 259 rounds to even
  EXPECT_EQ(sum_of({256, 1, 1, 1, 1}, at::kBFloat16), std::vector<double>(17, 260));
  EXPECT_EQ(sum_of({2048, 1, 1, 1, 1}, at::kHalf), std::vector<double>(17, 2052));
}

TEST(OrderedReduce, RoundsNarrowTypesAsTorchDoes) {
  std::vector<double> a, b;
  for (int i = 0; i < 4096; ++i) {
    a.push_back(std::sin(i) * std::exp(i % 40 - 20));
    b.push_back(std::cos(i) * std::exp(i % 37 - 20));
  }
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = make(a, type);
    const at::Tensor y = make(b, type);
    const at::Tensor expected = x.to(at::kFloat).add(y.to(at::kFloat)).to(type);
    EXPECT_TRUE(equal_bits(reduce({x, y}, ReduceOp::sum), expected));
  }
}

TEST(OrderedReduce, AddsInRankOrder) {
  const at::Tensor big = make(std::vector<double>(33, 1e8), at::kFloat);
  const at::Tensor one = make(std::vector<double>(33, 1), at::kFloat);
  const at::Tensor minus = make(std::vector<double>(33, -1e8), at::kFloat);
  EXPECT_EQ(values(reduce({big, minus, one}, ReduceOp::sum)), std::vector<double>(33, 1));
  EXPECT_EQ(values(reduce({big, one, minus}, ReduceOp::sum)), std::vector<double>(33, 0));
}

TEST(OrderedReduce, OutMayBeAnInput) {
  for (size_t place = 0; place < 3; ++place) {
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < 3; ++r) {
      inputs.push_back(make(samples(r, 5000), at::kBFloat16));
    }
    const at::Tensor expected = reduce(inputs, ReduceOp::sum);
    std::vector<const void*> pointers;
    for (const at::Tensor& input : inputs) {
      pointers.push_back(input.const_data_ptr());
    }
    ordered_reduce(inputs[place].data_ptr(), pointers, 5000, at::kBFloat16, ReduceOp::sum);
    EXPECT_TRUE(equal_bits(inputs[place], expected));
  }
}

TEST(OrderedReduce, NanAndInfinityComeThrough) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const std::vector<at::Tensor> inputs = {make({nan, 1, infinity, 1}, type), make({1, nan, 1, 1}, type)};
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      const auto out = values(reduce(inputs, op));
      EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
      EXPECT_EQ(std::isinf(out[2]), op != ReduceOp::min);
      EXPECT_FALSE(std::isnan(out[3]));
    }
  }
}

TEST(OrderedReduce, NamesTypesItCannotAdd) {
  const std::vector<const void*> none = {nullptr};
  expect_in(message_of([&] { ordered_reduce(nullptr, none, 0, at::kComplexFloat, ReduceOp::sum); }), "ComplexFloat");
}

}  // namespace
}  // namespace tetra
