// AdamW, SGD and Lion against PyTorch's order of operations, sums of squares, accumulation.

#include "kernels/optimizer_step.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/composite.h"
#include "kernels/error.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

constexpr int64_t kCount = 9001;

TEST(OptimizerStep, adamw_follows_pytorch_over_ten_steps) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    at::Tensor p = random({kCount}, type), m = at::zeros_like(p), v = at::zeros_like(p), none;
    at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
    for (int64_t step = 1; step <= 10; ++step) {
      const at::Tensor grad = random({kCount}, type);
      const AdamWStep s{
          .lr = 3e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = step, .grad_scale = 0.7};
      adamw_step(p, grad, m, v, none, s);
      composite::adamw_step(p2, grad, m2, v2, none, s);
    }
    const double tolerance = type == at::kDouble ? 1e-13 : 1e-5;
    expect_close({p, m, v}, {p2, m2, v2}, tolerance, "adamw");
  }
}

TEST(OptimizerStep, sgd_follows_pytorch) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      at::Tensor p = random({kCount}), buffer = at::zeros_like(p), none;
      at::Tensor p2 = p.clone(), buffer2 = buffer.clone();
      for (int step = 0; step < 4; ++step) {
        const at::Tensor grad = random({kCount});
        const SgdStep s{.lr = 0.1,
                        .momentum = momentum,
                        .dampening = nesterov ? 0.0 : 0.2,
                        .weight_decay = 0.01,
                        .nesterov = nesterov,
                        .first = step == 0,
                        .grad_scale = 0.5};
        sgd_step(p, grad, buffer, none, s);
        composite::sgd_step(p2, grad, buffer2, none, s);
      }
      expect_close({p, buffer}, {p2, buffer2}, 1e-13, "sgd");
    }
  }
}

/// The paper's update of single elements, in double; false where the sign hangs on the last digits.
bool lion_element(double& p, double& m, double g, const LionStep& s) {
  g *= s.grad_scale;
  const double blend = s.beta1 * m + (1 - s.beta1) * g;
  p = p * (1 - s.lr * s.weight_decay) - s.lr * static_cast<double>((blend > 0) - (blend < 0));
  m = s.beta2 * m + (1 - s.beta2) * g;
  return std::fabs(blend) > 1e-6;
}

TEST(OptimizerStep, lion_follows_the_paper_in_all_types) {
  using Step = void (*)(at::Tensor&, const at::Tensor&, at::Tensor&, at::Tensor&, const LionStep&);
  const LionStep s{.lr = 3e-2, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .grad_scale = 0.7};
  for (const Step take : {Step(lion_step), Step(composite::lion_step)}) {
    for (const auto& [type, copy_type] : std::vector<std::pair<at::ScalarType, std::optional<at::ScalarType>>>{
             {at::kDouble, {}}, {at::kFloat, {}}, {at::kFloat, at::kBFloat16}, {at::kFloat, at::kHalf}}) {
      at::Tensor p = random({kCount}, type), m = random({kCount}, type);
      at::Tensor copy = copy_type ? at::zeros_like(p).to(*copy_type) : at::Tensor();
      for (int step = 0; step < 3; ++step) {
        const at::Tensor grad = 10 * random({kCount}, type);
        at::Tensor p64 = p.to(at::kDouble, false, true), m64 = m.to(at::kDouble, false, true);
        const at::Tensor g64 = grad.to(at::kDouble);
        take(p, grad, m, copy, s);
        for (int64_t i = 0; i < kCount; ++i) {
          if (!lion_element(p64.mutable_data_ptr<double>()[i], m64.mutable_data_ptr<double>()[i],
                            g64.const_data_ptr<double>()[i], s)) {
            p64[i] = p[i];
          }
        }
        expect_close({p, m}, {p64, m64}, type == at::kDouble ? 1e-15 : 3e-7, "lion");
      }
      EXPECT_TRUE(!copy_type || copy.equal(p.to(*copy_type)));
    }
  }
}

TEST(OptimizerStep, lion_rests_on_zeros_and_lets_nan_be_seen) {
  const LionStep s{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0};
  for (const auto take : {lion_step, composite::lion_step}) {
    at::Tensor p = random({64}, at::kFloat), m = at::zeros_like(p), none;
    const at::Tensor before = p.clone();
    at::Tensor grad = at::zeros_like(p);
    take(p, grad, m, none, s);
    EXPECT_TRUE(p.equal(before));
    grad[5] = NAN;
    take(p, grad, m, none, s);
    EXPECT_TRUE(std::isnan(p[5].item<float>()) && std::isnan(m[5].item<float>()));
    EXPECT_EQ(p.isnan().sum().item<int64_t>(), 1);
  }
}

TEST(OptimizerStep, model_copies_are_the_rounded_master) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::Tensor p = random({kCount}, at::kFloat), m = at::zeros_like(p), v = at::zeros_like(p);
    p.slice(0, 0, 100).mul_(1e-6);  // subnormal in half
    at::Tensor copy = at::zeros_like(p).to(type);
    adamw_step(p, random({kCount}, at::kFloat) * 1e-8, m, v, copy,
               {.lr = 1e-9, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0, .step = 1});
    EXPECT_TRUE(copy.equal(p.to(type)));
    sgd_step(p, random({kCount}, at::kFloat), m, copy,
             {.lr = 0.1, .momentum = 0, .dampening = 0, .weight_decay = 0, .nesterov = false, .first = true});
    EXPECT_TRUE(copy.equal(p.to(type)));
  }
}

TEST(OptimizerStep, a_shard_takes_the_same_step_as_the_whole) {
  at::Tensor p = random({kCount}, at::kFloat), m = random({kCount}, at::kFloat), v = m.abs(), none;
  const at::Tensor grad = random({kCount}, at::kFloat);
  at::Tensor p2 = p.slice(0, 13, 777).clone(), m2 = m.slice(0, 13, 777).clone(), v2 = v.slice(0, 13, 777).clone();
  const AdamWStep s{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3};
  adamw_step(p, grad, m, v, none, s);
  adamw_step(p2, grad.slice(0, 13, 777), m2, v2, none, s);
  EXPECT_TRUE(p.slice(0, 13, 777).equal(p2));
  const LionStep l{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
  lion_step(p, grad, m, none, l);
  lion_step(p2, grad.slice(0, 13, 777), m2, none, l);
  EXPECT_TRUE(p.slice(0, 13, 777).equal(p2));
}

TEST(OptimizerStep, sum_of_squares_is_in_double_and_the_same_for_any_number_of_threads) {
  for (const Precision& p : kPrecisions) {
    const at::Tensor x = random({100003}, p.type);
    const double expected = composite::sum_of_squares(x);
    const auto with = [&](int threads) {
      const Threads guard(threads);
      return sum_of_squares(x);
    };
    EXPECT_NEAR(with(1) / expected, 1, 1e-13);
    EXPECT_EQ(with(1), with(3));
  }
  EXPECT_EQ(sum_of_squares(random({0})), 0);
}

TEST(OptimizerStep, accumulates_in_the_main_type) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor main = random({kCount}, at::kFloat);
    const at::Tensor a = random({kCount}, type), b = random({kCount}, type);
    accumulate_grad(main, a, true);
    accumulate_grad(main, b, false);
    EXPECT_TRUE(main.equal(a.to(at::kFloat) + b.to(at::kFloat)));
  }
}

TEST(OptimizerStep, half_conversions_are_exact_for_every_value) {
  // All 65536 halves through float and back, by way of accumulation and the model copy.
  at::Tensor bits = at::zeros_like(random({65536})).to(at::kShort);
  for (int i = 0; i < 65536; ++i) {
    bits.mutable_data_ptr<int16_t>()[i] = static_cast<int16_t>(i);
  }
  const at::Tensor halves = bits.view(at::kHalf);
  at::Tensor main = random({65536}, at::kFloat), copy = at::zeros_like(halves), none;
  accumulate_grad(main, halves, true);
  EXPECT_TRUE(main.nan_to_num(-7).equal(halves.to(at::kFloat).nan_to_num(-7)));
  sgd_step(main, at::zeros_like(main), none, copy,
           {.lr = 0, .momentum = 0, .dampening = 0, .weight_decay = 0, .nesterov = false, .first = true});
  const at::Tensor finite = halves.isfinite();
  EXPECT_TRUE(copy.masked_select(finite).equal(halves.masked_select(finite)));
  main.fill_(65520);  // half-way from the largest half to the next power of two
  sgd_step(main, at::zeros_like(main), none, copy,
           {.lr = 0, .momentum = 0, .dampening = 0, .weight_decay = 0, .nesterov = false, .first = true});
  EXPECT_TRUE(copy.isinf().all().item<bool>());
}

TEST(OptimizerStep, names_what_does_not_fit) {
  at::Tensor p = random({4}), other = random({5}), m = random({4}), v = random({4}), none;
  const AdamWStep s{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 1};
  EXPECT_THROW(adamw_step(p, other, m, v, none, s), Error);
  EXPECT_THROW(lion_step(p, other, m, none, {.lr = 1, .beta1 = 0, .beta2 = 0, .weight_decay = 0}), Error);
  EXPECT_THROW(lion_step(p, m, none = other, v, {.lr = 1, .beta1 = 0, .beta2 = 0, .weight_decay = 0}), Error);
  none = at::Tensor();
  AdamWStep zero = s;
  zero.step = 0;
  EXPECT_THROW(adamw_step(p, m, m, v, none, zero), Error);
  at::Tensor half = p.to(at::kBFloat16);
  EXPECT_THROW(adamw_step(p, m, m, v, half, s), Error);  // a copy of a double master
}

}  // namespace
}  // namespace tetra::test
