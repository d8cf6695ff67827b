#include "mesh/philox.h"

#include <cmath>
#include <cstring>
#include <set>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tests/mesh/ranks.h"
#include "tests/mesh/values.h"

namespace tetra {
namespace {

using Block = std::array<uint32_t, 4>;

// The known-answer vectors published with the Random123 library.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

at::Tensor normal(const Slice& slice, const RandomStream& stream, at::ScalarType type = at::kFloat, double std = 1.0) {
  at::Tensor x = at::empty(slice.local_shape(), type);
  fill_normal(x, slice, stream, std);
  return x;
}

at::Tensor uniform(const Slice& slice, const RandomStream& stream, at::ScalarType type = at::kFloat) {
  at::Tensor x = at::empty(slice.local_shape(), type);
  fill_uniform(x, slice, stream);
  return x;
}

// Cuts the slice out of the whole tensor by plain indexing.
at::Tensor cut(const at::Tensor& whole, const Slice& slice) {
  at::Tensor result = at::empty(slice.local_shape(), whole.scalar_type());
  int64_t at = 0;
  for (const Range& range : slice.ranges) {
    result.narrow(slice.dim, at, range.size()).copy_(whole.narrow(slice.dim, range.begin, range.size()));
    at += range.size();
  }
  return result;
}

TEST(Philox, AnySliceHoldsTheValuesOfTheWhole) {
  const RandomStream stream{.seed = 7, .name = "layers.0.weight", .step = 3};
  const std::vector<std::vector<int64_t>> shapes = {{37, 53}, {1, 5}, {4099}, {16, 64}, {3, 5, 7}, {700, 3}};
  for (const auto& shape : shapes) {
    for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const at::Tensor whole = normal(Slice::whole(shape), stream, type, 0.02);
      const at::Tensor whole_uniform = uniform(Slice::whole(shape), stream, type);
      for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
        const int64_t size = shape[static_cast<size_t>(dim)];
        std::vector<std::vector<Range>> cuts = {{{0, size}}, {}, {{size - 1, size}, {0, 1}}, {{0, size}, {0, size}}};
        for (int64_t parts : {2, 3}) {
          for (int64_t i = 0; i < parts; ++i) {
            cuts.push_back({even_range(size, parts, i)});
          }
        }
        for (const auto& ranges : cuts) {
          const Slice slice{.global_shape = shape, .dim = dim, .ranges = ranges};
          EXPECT_TRUE(equal_bits(normal(slice, stream, type, 0.02), cut(whole, slice)));
          EXPECT_TRUE(equal_bits(uniform(slice, stream, type), cut(whole_uniform, slice)));
        }
      }
    }
  }
}

TEST(Philox, ThreadsDoNotChangeTheDraw) {
  const int threads = at::get_num_threads();
  const Slice slice = Slice::whole({1000, 701});
  at::set_num_threads(1);
  const at::Tensor one = normal(slice, {.seed = 1, .name = "x"});
  at::set_num_threads(3);
  const at::Tensor three = normal(slice, {.seed = 1, .name = "x"});
  at::set_num_threads(threads);
  EXPECT_TRUE(equal_bits(one, three));
}

TEST(Philox, ADoubleIsTheFloat) {
  const Slice slice = Slice::whole({1001});
  const RandomStream stream{.seed = 5, .name = "w"};
  EXPECT_TRUE(
      equal_bits(normal(slice, stream, at::kDouble, 0.02), normal(slice, stream, at::kFloat, 0.02).to(at::kDouble)));
}

TEST(Philox, SeedNameAndStepSeparateStreams) {
  const Slice slice = Slice::whole({64});
  const at::Tensor base = normal(slice, {.seed = 1, .name = "a", .step = 0});
  EXPECT_TRUE(equal_bits(base, normal(slice, {.seed = 1, .name = "a", .step = 0})));
  EXPECT_FALSE(equal_bits(base, normal(slice, {.seed = 2, .name = "a", .step = 0})));
  EXPECT_FALSE(equal_bits(base, normal(slice, {.seed = 1, .name = "b", .step = 0})));
  EXPECT_FALSE(equal_bits(base, normal(slice, {.seed = 1, .name = "a", .step = 1})));
  EXPECT_FALSE(equal_bits(base, normal(slice, {.seed = 1, .name = "", .step = 0})));
}

TEST(Philox, NormalMoments) {
  constexpr int64_t kCount = 1 << 20;
  const at::Tensor x = normal(Slice::whole({kCount}), {.seed = 11, .name = "moments"}, at::kDouble);
  const auto* v = static_cast<const double*>(x.const_data_ptr());
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0, largest = 0, within = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    m1 += v[i];
    m2 += v[i] * v[i];
    m3 += v[i] * v[i] * v[i];
    m4 += v[i] * v[i] * v[i] * v[i];
    lag += i > 0 ? v[i] * v[i - 1] : 0;
    largest = std::max(largest, std::abs(v[i]));
    within += std::abs(v[i]) < 1.0 ? 1 : 0;
  }
  // Five standard errors of each estimate.
  const double e = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(m1 / kCount, 0, e);
  EXPECT_NEAR(m2 / kCount, 1, e * std::sqrt(2.0));
  EXPECT_NEAR(m3 / kCount, 0, e * std::sqrt(15.0));
  EXPECT_NEAR(m4 / kCount, 3, e * std::sqrt(96.0));
  EXPECT_NEAR(lag / kCount, 0, e);
  EXPECT_NEAR(within / kCount, 0.6826894921, e * 0.4655);
  EXPECT_GT(largest, 4.4);
  EXPECT_LT(largest, 7.0);
}

TEST(Philox, NormalIsBoxMullerOfTheBlock) {
  const RandomStream stream{.seed = 3, .name = "formula"};
  const at::Tensor z = normal(Slice::whole({4096}), stream, at::kDouble);
  const at::Tensor u = uniform(Slice::whole({4096}), stream, at::kDouble);
  const auto* drawn = static_cast<const double*>(z.const_data_ptr());
  const auto* unit = static_cast<const double*>(u.const_data_ptr());  // the same bits, the lowest 8 cut off
  for (int i = 0; i < 4096; i += 2) {
    const double radius = std::sqrt(-2 * std::log(unit[i] + 0x1p-25));
    const double angle = 2 * M_PI * unit[i + 1];
    const double tolerance = 2e-6 * radius + 1e-3 * (unit[i] < 1e-3 || unit[i] > 0.999 ? 1 : 0.01);
    EXPECT_NEAR(drawn[i], radius * std::cos(angle), tolerance);
    EXPECT_NEAR(drawn[i + 1], radius * std::sin(angle), tolerance);
  }
}

TEST(Philox, UniformStaysBelowOneInEveryType) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = uniform(Slice::whole({100000}), {.seed = 2, .name = "u"}, type).to(at::kDouble);
    const auto* v = static_cast<const double*>(x.const_data_ptr());
    double sum = 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
      ASSERT_GE(v[i], 0.0);
      ASSERT_LT(v[i], 1.0);
      sum += v[i];
    }
    EXPECT_NEAR(sum / static_cast<double>(x.numel()), 0.5, 0.006);
  }
}

TEST(Philox, RandomBitsDependOnAllTheyAreGiven) {
  std::set<uint64_t> seen;
  for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    for (const char* name : {"a", "b"}) {
      for (uint64_t step : {0, 1}) {
        seen.insert(random_bits({.seed = 1, .name = name, .step = step}, index));
      }
    }
  }
  EXPECT_EQ(seen.size(), 12u);
}

TEST(Philox, RefusesWhatDoesNotFit) {
  const Slice slice = Slice::whole({2, 3});
  at::Tensor wrong = at::empty({3, 2});
  expect_in(message_of([&] { fill_normal(wrong, slice, {.seed = 1, .name = "w"}, 1.0); }), "the slice has [2, 3]");
  at::Tensor strided = at::empty({3, 2}).t();
  expect_in(message_of([&] { fill_normal(strided, slice, {.seed = 1, .name = "w"}, 1.0); }), "contiguous");
  at::Tensor whole_numbers = at::empty({2, 3}, at::kInt);
  expect_in(message_of([&] { fill_normal(whole_numbers, slice, {.seed = 1, .name = "w"}, 1.0); }), "Int");
}

}  // namespace
}  // namespace tetra
