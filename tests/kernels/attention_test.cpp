// Attention against a plain softmax, forward and backward.

#include "kernels/attention.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include "kernels/composite.h"
#include "kernels/error.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale) {
  const int64_t shared = q.size(2) / k.size(2);
  const auto heads_first = [&](const at::Tensor& x, int64_t copies) {
    return x.transpose(1, 2).repeat_interleave(copies, 1);
  };
  at::Tensor scores = at::matmul(heads_first(q, 1), heads_first(k, shared).transpose(-1, -2)) * scale;
  if (causal) {
    const at::Tensor hidden = at::ones({q.size(1), k.size(1)}, at::kBool).triu(1);
    scores = scores.masked_fill(hidden, -INFINITY);
  }
  return at::matmul(at::softmax(scores, -1), heads_first(v, shared)).transpose(1, 2);
}

struct Shape {
  int64_t batch, queries, keys, heads, kv_heads, dim;
  bool causal;
};

void compare_shape(const Shape& s, const Precision& p, double scale) {
  const double factor = scale == 0 ? 1 / std::sqrt(static_cast<double>(s.dim)) : scale;
  compare([&](const Tensors& t) -> Tensors { return {attention(t[0], t[1], t[2], s.causal, scale)}; },
          [&](const Tensors& t) -> Tensors { return {plain(t[0], t[1], t[2], s.causal, factor)}; },
          {random({s.batch, s.queries, s.heads, s.dim}), random({s.batch, s.keys, s.kv_heads, s.dim}),
           random({s.batch, s.keys, s.kv_heads, s.dim})},
          {random({s.batch, s.queries, s.heads, s.dim})}, p.type, p.tolerance);
}

TEST(Attention, agrees_with_a_plain_softmax) {
  const std::vector<Shape> shapes = {
      {1, 2, 2, 1, 1, 8, true},      {2, 1, 5, 2, 2, 8, false},     {2, 17, 17, 4, 2, 16, true},
      {2, 17, 33, 4, 4, 6, false},   {1, 64, 64, 2, 1, 64, true},   {1, 100, 100, 3, 1, 32, true},
      {1, 300, 300, 2, 2, 24, true}, {1, 70, 523, 4, 2, 16, false}, {2, 20, 20, 2, 2, 5, true}};
  for (const Precision& p : kPrecisions) {
    for (const Shape& shape : shapes) {
      compare_shape(shape, p, 0.0);
    }
    compare_shape(shapes[1], p, 0.7);
  }
}

// Scores of some 5000 have absolute roundings of 3e-4 in float; and where the softmax is nearly one-hot, gradients are
// small differences with an output that was rounded to 16 bits.
TEST(Attention, survives_large_scores) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor q = 30 * random({1, 300, 2, 32}), k = 30 * random({1, 300, 1, 32}), v = random({1, 300, 1, 32});
    compare([&](const Tensors& t) -> Tensors { return {attention(t[0], t[1], t[2], true)}; },
            [&](const Tensors& t) -> Tensors { return {plain(t[0], t[1], t[2], true, 1 / std::sqrt(32.0))}; },
            {q, k, v}, {random({1, 300, 2, 32})}, type, type == at::kFloat ? 1e-3 : 0.2);
  }
}

TEST(Attention, takes_strided_inputs_and_gradients_and_gives_a_contiguous_output) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensors t = leaves({random({2, 40, 8 * 16}, type)});
    const at::Tensor q = t[0].slice(2, 0, 64).view({2, 40, 4, 16}), k = t[0].slice(2, 64, 96).view({2, 40, 2, 16}),
                     v = t[0].slice(2, 96).view({2, 40, 2, 16});
    const at::Tensor y = attention(q, k, v, true);
    EXPECT_TRUE(y.is_contiguous());
    y.sum().backward();
    const Tensors u = leaves({t[0].detach().to(at::kDouble)});
    plain(u[0].slice(2, 0, 64).view({2, 40, 4, 16}), u[0].slice(2, 64, 96).view({2, 40, 2, 16}),
          u[0].slice(2, 96).view({2, 40, 2, 16}), true, 0.25)
        .sum()
        .backward();
    EXPECT_LE(distance(t[0].grad(), u[0].grad()), type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2);
  }
}

TEST(Attention, is_the_same_for_any_number_of_threads) {
  const Tensors x = {random({2, 90, 4, 16}, at::kFloat), random({2, 90, 2, 16}, at::kFloat),
                     random({2, 90, 2, 16}, at::kFloat)};
  const auto with = [&](int threads) {
    const Threads guard(threads);
    return run([](const Tensors& t) -> Tensors { return {attention(t[0], t[1], t[2], true)}; }, x, {x[0]});
  };
  const Outcome one = with(1), three = with(3);
  EXPECT_TRUE(one.outputs[0].equal(three.outputs[0]));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(one.grads[i].equal(three.grads[i]));
  }
}

TEST(Attention, gradients_agree_with_finite_differences) {
  check_gradients([](const Tensors& t) -> Tensors { return {attention(t[0], t[1], t[2], true)}; },
                  {random({1, 5, 4, 6}), random({1, 5, 2, 6}), random({1, 5, 2, 6})}, {random({1, 5, 4, 6})});
}

TEST(Attention, composition_for_other_devices_agrees) {
  const Tensors x = {random({2, 9, 4, 8}), random({2, 9, 2, 8}), random({2, 9, 2, 8})}, grad = {random({2, 9, 4, 8})};
  const Outcome ours =
      run([](const Tensors& t) -> Tensors { return {attention(t[0], t[1], t[2], true, 0.3)}; }, x, grad);
  const Outcome theirs =
      run([](const Tensors& t) -> Tensors { return {composite::attention(t[0], t[1], t[2], true, 0.3)}; }, x, grad);
  expect_close(theirs.outputs, ours.outputs, 1e-12, "output");
  expect_close(theirs.grads, ours.grads, 1e-12, "gradient");
}

TEST(Attention, names_what_does_not_fit) {
  const at::Tensor q = random({1, 4, 6, 8});
  EXPECT_THROW(attention(q, random({1, 4, 4, 8}), random({1, 4, 4, 8}), true), Error);
  EXPECT_THROW(attention(q, random({1, 5, 3, 8}), random({1, 5, 3, 8}), true), Error);
  EXPECT_THROW(attention(q, random({1, 4, 3, 8}), random({1, 4, 3, 8}, at::kFloat), true), Error);
}

}  // namespace
}  // namespace tetra::test
