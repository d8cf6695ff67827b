// Matrix products that share an input, and their gradients.

#include "kernels/linear.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include "kernels/error.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

/// Inputs: x, then weight and bias of three products; the second has no bias.
struct Case {
  WeightLayout layout;
  Tensors ours(const Tensors& t) const { return linear(t[0], {t[1], t[3], t[4]}, {t[2], {}, t[5]}, layout); }
  Tensors plain(const Tensors& t) const {
    const auto right = [&](const at::Tensor& w) { return layout == WeightLayout::out_in ? w.t() : w; };
    return {at::matmul(t[0], right(t[1])) + t[2], at::matmul(t[0], right(t[3])), at::matmul(t[0], right(t[4])) + t[5]};
  }
};

TEST(Linear, agrees_with_the_plain_composition) {
  for (const WeightLayout layout : {WeightLayout::out_in, WeightLayout::in_out}) {
    const Case c{layout};
    const auto weight = [&](int64_t out) {
      return layout == WeightLayout::out_in ? random({out, 24}) : random({24, out});
    };
    const Tensors inputs = {random({37, 24}), weight(16), random({16}), weight(5), weight(40), random({40})};
    const Tensors grads = {random({37, 16}), random({37, 5}), random({37, 40})};
    for (const Precision& p : kPrecisions) {
      compare([&](const Tensors& t) { return c.ours(t); }, [&](const Tensors& t) { return c.plain(t); }, inputs, grads,
              p.type, 2 * p.tolerance);
    }
  }
}

TEST(Linear, output_that_nobody_uses_has_no_part_in_the_gradient) {
  const Tensors t = leaves({random({6, 4}), random({3, 4}), random({5, 4})});
  const Tensors y = linear(t[0], {t[1], t[2]}, {});
  y[0].sum().backward();
  EXPECT_FALSE(t[2].grad().defined());
  EXPECT_LE(distance(t[0].grad(), at::matmul(at::ones({6, 3}, at::kDouble), t[1].detach())), 1e-12);
}

TEST(Linear, computes_just_the_gradients_that_are_asked_for) {
  const at::Tensor x = random({6, 4}), w = random({3, 4}).requires_grad_(true), b = random({3});
  linear(x, w, b).sum().backward();
  EXPECT_TRUE(w.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  const at::Tensor leaf = random({6, 4}).requires_grad_(true), frozen = random({3, 4});
  linear(leaf, frozen).sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
}

TEST(Linear, gradients_and_products_of_16_bit_types_are_summed_in_fp32) {
  // 4096 ones: a bf16 sum stops growing at 256, a half sum at 2048.
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto ones = [&](at::IntArrayRef sizes) { return at::ones(sizes, at::TensorOptions(type)); };
    const Tensors t = leaves({ones({4096, 8}), ones({4, 8}), ones({4})});
    linear(t[0], t[1], t[2]).backward(ones({4096, 4}));
    EXPECT_EQ(t[1].grad().min().item<double>(), 4096);
    EXPECT_EQ(t[2].grad().min().item<double>(), 4096);
    const Tensors wide = leaves({ones({3, 4096}), ones({5, 4096}), ones({4096, 7}), ones({7, 4096})});
    EXPECT_EQ(linear(wide[0], wide[1]).min().item<double>(), 4096);
    EXPECT_EQ(linear(wide[0], wide[2], {}, WeightLayout::in_out).min().item<double>(), 4096);
    const at::Tensor x = leaves({ones({3, 7})})[0];
    linear(x, wide[3].detach().t().contiguous()).backward(ones({3, 4096}));
    EXPECT_EQ(x.grad().min().item<double>(), 4096);
  }
}

TEST(Linear, names_what_does_not_fit) {
  EXPECT_THROW(linear(random({4, 8}), random({3, 9})), Error);
  EXPECT_THROW(linear(random({4, 8}), random({3, 8}), random({4})), Error);
  EXPECT_THROW(linear(random({4, 8}), random({3, 8}, at::kFloat)), Error);
  EXPECT_THROW(linear(random({4, 8}), std::vector<at::Tensor>{}, {}), Error);
}

}  // namespace
}  // namespace tetra::test
