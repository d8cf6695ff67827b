// SwiGLU and GELU against plain compositions.

#include "kernels/activation.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include "kernels/composite.h"
#include "kernels/error.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

Tensors plain_swiglu(const Tensors& x) {
  return {x[0] * at::sigmoid(x[0]) * x[1]};
}
Tensors our_swiglu(const Tensors& x) {
  return {swiglu(x[0], x[1])};
}
Tensors plain_exact(const Tensors& x) {
  return {0.5 * x[0] * (1 + at::erf(x[0] / std::sqrt(2.0)))};
}
Tensors our_exact(const Tensors& x) {
  return {gelu(x[0], Gelu::exact)};
}
Tensors plain_tanh(const Tensors& x) {
  return {0.5 * x[0] * (1 + at::tanh(std::sqrt(2 / M_PI) * (x[0] + 0.044715 * x[0].pow(3))))};
}
Tensors our_tanh(const Tensors& x) {
  return {gelu(x[0], Gelu::tanh)};
}

TEST(Activation, agrees_with_the_plain_composition) {
  for (const Precision& p : kPrecisions) {
    for (const int64_t count : {1, 31, 5000}) {
      at::Tensor x = 3 * random({2, count}), grad = random({2, count});
      x.select(1, 0).fill_(2.5);  // errors are relative to the largest value: have one
      compare(our_swiglu, plain_swiglu, {x, random({2, count})}, {grad}, p.type, p.tolerance);
      compare(our_exact, plain_exact, {x}, {grad}, p.type, p.tolerance);
      compare(our_tanh, plain_tanh, {x}, {grad}, p.type, p.tolerance);
    }
  }
}

TEST(Activation, double_is_exact_to_the_last_bits_over_the_whole_range) {
  const at::Tensor x = at::linspace(-700, 700, 100001, at::kDouble), one = random({100001}) * 0 + 1;
  const at::Tensor expected = x * at::sigmoid(x);
  const at::Tensor error = ((swiglu(x, one) - expected) / expected.abs().clamp_min(1e-300)).abs();
  EXPECT_LE(error.max().item<double>(), 1e-15);
}

TEST(Activation, far_values_neither_overflow_nor_lose_nan) {
  for (const Precision& p : kPrecisions) {
    const double far = p.type == at::kHalf ? 6e4 : 1e30;
    const at::Tensor x = at::linspace(-far, far, 2, at::kDouble).to(p.type), one = (x * 0 + 1);
    for (const at::Tensor& y : {swiglu(x, one), gelu(x, Gelu::exact), gelu(x, Gelu::tanh)}) {
      EXPECT_EQ(y[0].item<double>(), 0);
      EXPECT_EQ(y[1].item<double>(), x[1].item<double>());
    }
    const at::Tensor nan = (x * NAN);
    for (const at::Tensor& y : {swiglu(nan, one), gelu(nan, Gelu::exact), gelu(nan, Gelu::tanh)}) {
      EXPECT_TRUE(y.isnan().all().item<bool>());
    }
  }
}

TEST(Activation, gradients_agree_with_finite_differences) {
  const at::Tensor x = random({4, 6}), grad = random({4, 6});
  check_gradients(our_swiglu, {x, random({4, 6})}, {grad});
  check_gradients(our_exact, {x}, {grad});
  check_gradients(our_tanh, {x}, {grad});
}

TEST(Activation, composition_for_other_devices_agrees) {
  for (const Precision& p : kPrecisions) {
    const at::Tensor gate = random({8, 40}, p.type), up = random({8, 40}, p.type), g = random({8, 40}, p.type);
    const Outcome ours = run(our_swiglu, {gate, up}, {g});
    EXPECT_LE(distance(composite::swiglu(gate, up), ours.outputs[0]), p.tolerance);
    const auto [grad_gate, grad_up] = composite::swiglu_backward(g, gate, up);
    expect_close({grad_gate, grad_up}, ours.grads, p.tolerance, "swiglu");
  }
}

TEST(Activation, names_what_does_not_fit) {
  EXPECT_THROW(swiglu(random({2, 3}), random({3, 2})), Error);
  EXPECT_THROW(swiglu(random({2, 3}), random({2, 3}, at::kFloat)), Error);
  EXPECT_THROW(gelu(random({2, 3}).t(), Gelu::exact), Error);
}

}  // namespace
}  // namespace tetra::test
