// Rotary embedding: tables against their formulas, the rotation in place, and its gradient.

#include "kernels/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "kernels/composite.h"
#include "kernels/error.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

RopeConfig config_of(int64_t head_dim) {
  RopeConfig config;
  config.head_dim = head_dim;
  return config;
}

at::Tensor plain(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions) {
  const at::Tensor rows_cos = table.cos.to(x.scalar_type()).index({positions});
  const at::Tensor rows_sin = table.sin.to(x.scalar_type()).index({positions});
  const auto fit = [&](const at::Tensor& rows) {
    const at::Tensor both = at::cat({rows, rows}, -1);
    return positions.dim() == 2 ? both.unsqueeze(2) : both.unsqueeze(0).unsqueeze(2);
  };
  const int64_t half = x.size(-1) / 2;
  const at::Tensor turned = at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1);
  return x * fit(rows_cos) + turned * fit(rows_sin);
}

TEST(Rope, table_follows_the_formula) {
  const RopeTable table = make_rope_table(config_of(8), 11, at::kDouble);
  EXPECT_EQ(table.cos.sizes(), at::IntArrayRef({11, 4}));
  for (int64_t position = 0; position < 11; ++position) {
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
      EXPECT_NEAR(table.cos[position][i].item<double>(), std::cos(angle), 1e-14);
      EXPECT_NEAR(table.sin[position][i].item<double>(), std::sin(angle), 1e-14);
    }
  }
}

TEST(Rope, scalings_follow_their_formulas) {
  RopeConfig config = config_of(128);
  config.theta = 500000;
  config.type = "llama3";
  config.factor = 8;
  const RopeTable llama3 = make_rope_table(config, 4, at::kDouble);
  config.type = "linear";
  const RopeTable linear = make_rope_table(config, 4, at::kDouble);
  int kept = 0, stretched = 0, blended = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const double f = std::pow(500000.0, -static_cast<double>(i) / 64), wave = 2 * M_PI / f;
    const double s = (8192 / wave - 1) / (4 - 1);
    const bool is_short = wave<8192.0 / 4, is_long = wave> 8192.0;
    const double expected = is_short ? f : is_long ? f / 8 : (1 - s) * f / 8 + s * f;
    (is_short ? kept : is_long ? stretched : blended)++;
    EXPECT_NEAR(llama3.sin[3][i].item<double>(), std::sin(3 * expected), 1e-13);
    EXPECT_NEAR(linear.sin[3][i].item<double>(), std::sin(3 * f / 8), 1e-13);
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(blended, 0);
  config.type = "yarn";
  EXPECT_THROW(make_rope_table(config, 4, at::kDouble), Error);
}

TEST(Rope, agrees_with_the_plain_composition) {
  for (const Precision& p : kPrecisions) {
    const RopeTable table = make_rope_table(config_of(12), 40, p.type == at::kDouble ? at::kDouble : at::kFloat);
    for (const at::Tensor& positions :
         {at::arange(20, 25, at::kLong), at::arange(10, at::kLong).view({2, 5}).contiguous() * 3}) {
      compare(
          [&](const Tensors& t) -> Tensors {
            const auto [q, k] = rope_(t[0].clone(), t[1].clone(), table, positions);
            return {q, k};
          },
          [&](const Tensors& t) -> Tensors {
            return {plain(t[0], table, positions), plain(t[1], table, positions)};
          },
          {random({2, 5, 6, 12}), random({2, 5, 3, 12})}, {random({2, 5, 6, 12}), random({2, 5, 3, 12})}, p.type,
          p.tolerance);
    }
  }
}

TEST(Rope, works_in_the_memory_of_its_inputs) {
  const RopeTable table = make_rope_table(config_of(8), 16, at::kDouble);
  const at::Tensor both = random({2 * 5, 6 * 8 + 2 * 8}).requires_grad_(true) * 1.0;
  // Parts of one product, viewed as heads: strided, and views that autograd knows of.
  const at::Tensor q = both.slice(1, 0, 48).view({2, 5, 6, 8}), k = both.slice(1, 48).view({2, 5, 2, 8});
  const at::Tensor expected = plain(q.detach().clone(), table, at::arange(5, at::kLong));
  const auto [q_out, k_out] = rope_(q, k, table, at::arange(5, at::kLong));
  EXPECT_EQ(q_out.data_ptr(), q.data_ptr());
  EXPECT_EQ(k_out.data_ptr(), k.data_ptr());
  EXPECT_EQ(q_out.strides(), q.strides());
  EXPECT_LE(distance(q_out, expected), 1e-14);
  EXPECT_TRUE(q_out.requires_grad());
}

TEST(Rope, takes_expanded_gradients) {
  const RopeTable table = make_rope_table(config_of(8), 16, at::kDouble);
  const at::Tensor positions = at::arange(5, at::kLong);
  const Tensors t = leaves({random({1, 5, 2, 8}), random({1, 5, 1, 8})}), u = leaves(t);
  const auto [q, k] = rope_(t[0].clone(), t[1].clone(), table, positions);
  (q.sum() + k.sum()).backward();
  (plain(u[0], table, positions).sum() + plain(u[1], table, positions).sum()).backward();
  expect_close({t[0].grad(), t[1].grad()}, {u[0].grad(), u[1].grad()}, 1e-12, "gradient");
}

TEST(Rope, composition_for_other_devices_agrees) {
  const RopeTable table = make_rope_table(config_of(8), 16, at::kFloat);
  const at::Tensor x = random({2, 5, 3, 8}, at::kBFloat16);
  for (const at::Tensor& positions : {at::arange(5, at::kLong), at::arange(10, at::kLong).view({2, 5})}) {
    const at::Tensor expected = rope_(x.clone(), x.clone(), table, positions).first;
    EXPECT_LE(distance(composite::rotate(x, table, positions, 1), expected), 1e-2);
    EXPECT_LE(distance(composite::rotate(expected, table, positions, -1), x), 2e-2);
  }
}

TEST(Rope, names_what_does_not_fit) {
  const RopeTable table = make_rope_table(config_of(8), 4, at::kDouble);
  const at::Tensor x = random({1, 5, 2, 8});
  EXPECT_THROW(rope_(x, x, table, at::arange(5, at::kLong)), Error);  // position 4 is past the table
  EXPECT_THROW(rope_(x, x, table, at::arange(3, at::kLong)), Error);
  EXPECT_THROW(rope_(x.to(at::kFloat), x.to(at::kFloat), table, at::arange(5, at::kLong) % 4), Error);
}

}  // namespace
}  // namespace tetra::test
