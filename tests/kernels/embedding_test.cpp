// Table lookup against a plain index, and the sums of its gradient.

#include "kernels/embedding.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

TEST(Embedding, agrees_with_a_plain_lookup) {
  const at::Tensor ids = at::randint(11, {53}, at::kLong), held = ids < 7;
  for (const Precision& p : kPrecisions) {
    for (const int64_t width : {1, 70, 130}) {
      compare([&](const Tensors& t) -> Tensors { return {embedding(t[0], ids)}; },
              [&](const Tensors& t) -> Tensors { return {t[0].index_select(0, ids)}; }, {random({11, width})},
              {random({53, width})}, p.type, p.tolerance);
      compare([&](const Tensors& t) -> Tensors { return {embedding(t[0], ids, held)}; },
              [&](const Tensors& t) -> Tensors { return {t[0].index_select(0, ids) * held.unsqueeze(1)}; },
              {random({11, width})}, {random({53, width})}, p.type, p.tolerance);
    }
  }
}

TEST(Embedding, gradient_of_16_bit_types_is_summed_in_fp32) {
  // 4096 ones: a bf16 sum stops growing at 256, a half sum at 2048.
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor table = at::zeros({2, 4}, at::TensorOptions(type)).requires_grad_(true);
    embedding(table, at::zeros({4096}, at::kLong)).backward(at::ones({4096, 4}, at::TensorOptions(type)));
    EXPECT_EQ(table.grad()[0][3].item<double>(), 4096);
    EXPECT_EQ(table.grad()[1].abs().max().item<double>(), 0);
  }
}

TEST(Embedding, gradient_is_the_same_for_any_number_of_threads) {
  const at::Tensor ids = at::randint(5, {301}, at::kLong), grad = random({301, 515}, at::kFloat);
  const Tensors table = {random({5, 515}, at::kFloat)};
  const auto with = [&](int threads) {
    const Threads guard(threads);
    return run([&](const Tensors& t) -> Tensors { return {embedding(t[0], ids)}; }, table, {grad}).grads[0];
  };
  EXPECT_TRUE(with(1).equal(with(3)));
}

}  // namespace
}  // namespace tetra::test
