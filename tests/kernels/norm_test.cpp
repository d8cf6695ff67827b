// RMSNorm and LayerNorm against plain compositions.

#include "kernels/norm.h"

#include <ATen/ops/rsqrt.h>

#include "kernels/composite.h"
#include "kernels/error.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

constexpr double kEps = 1e-5;

Tensors plain_rms_norm(const Tensors& x) {
  return {x[0] * at::rsqrt(x[0].square().mean(-1, true) + kEps) * x[1]};
}
Tensors our_rms_norm(const Tensors& x) {
  return {rms_norm(x[0], x[1], kEps)};
}
Tensors plain_layer_norm(const Tensors& x) {
  const at::Tensor centred = x[0] - x[0].mean(-1, true);
  return {centred * at::rsqrt(centred.square().mean(-1, true) + kEps) * x[1] + x[2]};
}
Tensors our_layer_norm(const Tensors& x) {
  return {layer_norm(x[0], x[1], x[2], kEps)};
}

TEST(Norm, agrees_with_the_plain_composition) {
  for (const Precision& p : kPrecisions) {
    for (const int64_t width : {3, 7, 64, 515}) {
      const Tensors x = {random({3, 67, width}) + 0.3, random({width}), random({width})};
      const Tensors grad = {random({3, 67, width})};
      compare(our_rms_norm, plain_rms_norm, {x[0], x[1]}, grad, p.type, 4 * p.tolerance);
      compare(our_layer_norm, plain_layer_norm, x, grad, p.type, 4 * p.tolerance);
    }
  }
}

TEST(Norm, gradients_agree_with_finite_differences) {
  const Tensors x = {random({5, 9}), random({9}), random({9})};
  check_gradients(our_rms_norm, {x[0], x[1]}, {random({5, 9})});
  check_gradients(our_layer_norm, x, {random({5, 9})});
}

TEST(Norm, rounds_the_quotient_before_the_weight) {
  const at::Tensor x = random({16, 128}, at::kBFloat16), w = random({128}, at::kBFloat16);
  const at::Tensor v = x.to(at::kFloat);
  const at::Tensor quotient = (v * at::rsqrt(v.square().mean(-1, true) + kEps)).to(at::kBFloat16);
  EXPECT_LE((rms_norm(x, w, kEps) != quotient * w).sum().item<int64_t>(), 2);  // a different last bit of the mean
}

TEST(Norm, is_the_same_for_any_number_of_threads) {
  const Tensors x = {random({700, 96}, at::kFloat), random({96}, at::kFloat), random({96}, at::kFloat)};
  const Tensors grad = {random({700, 96}, at::kFloat)};
  for (const Program& program : {Program(our_layer_norm), Program([](const Tensors& t) -> Tensors {
                                   return {our_rms_norm(t)[0] + t[2] * 0};
                                 })}) {
    const auto with = [&](int threads) {
      const Threads guard(threads);
      return run(program, x, grad);
    };
    const Outcome one = with(1), three = with(3);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_TRUE(one.grads[i].equal(three.grads[i]));
    }
  }
}

TEST(Norm, takes_expanded_gradients_and_no_rows) {
  const Tensors x = leaves({random({4, 8}), random({8})});
  rms_norm(x[0], x[1], kEps).sum().backward();
  const Tensors same = leaves({x[0].detach(), x[1].detach()});
  plain_rms_norm(same)[0].sum().backward();
  expect_close({x[0].grad(), x[1].grad()}, {same[0].grad(), same[1].grad()}, 1e-12, "gradient");
  EXPECT_EQ(rms_norm(random({0, 8}), random({8}), kEps).sizes(), at::IntArrayRef({0, 8}));
}

TEST(Norm, composition_for_other_devices_agrees) {
  for (const Precision& p : kPrecisions) {
    const at::Tensor x = random({33, 48}, p.type), w = random({48}, p.type), b = random({48}, p.type),
                     g = random({33, 48}, p.type);
    const Outcome rms = run(our_rms_norm, {x, w}, {g}), layer = run(our_layer_norm, {x, w, b}, {g});
    EXPECT_LE(distance(composite::rms_norm(x, w, kEps), rms.outputs[0]), p.tolerance);
    EXPECT_LE(distance(composite::layer_norm(x, w, b, kEps), layer.outputs[0]), p.tolerance);
    const auto [rx, rw] = composite::rms_norm_backward(g, x, w, kEps);
    const auto [lx, lw, lb] = composite::layer_norm_backward(g, x, w, kEps);
    expect_close({rx, rw}, rms.grads, p.tolerance, "rms_norm");
    expect_close({lx, lw, lb}, layer.grads, p.tolerance, "layer_norm");
  }
}

TEST(Norm, names_what_does_not_fit) {
  EXPECT_THROW(rms_norm(random({4, 8}), random({9}), kEps), Error);
  EXPECT_THROW(rms_norm(random({4, 8}), random({8}, at::kFloat), kEps), Error);
  EXPECT_THROW(rms_norm(random({8, 4}).t(), random({8}), kEps), Error);
}

}  // namespace
}  // namespace tetra::test
