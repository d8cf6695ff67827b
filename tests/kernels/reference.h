#pragma once
// What the kernel tests share: plain compositions of ATen operations under autograd, and comparisons.

#include <cmath>
#include <functional>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace tetra::test {

using Tensors = std::vector<at::Tensor>;

/// Starts every test from one seed, so that what it draws does not depend on which tests ran before.
class Seeder : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_current_seed(1);
  }
};
inline const bool kSeeded = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Seeder);
  return true;
}();

inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType type = at::kDouble) {
  return at::randn(sizes, at::kDouble).to(type);
}

/// Copies that require gradients.
inline Tensors leaves(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& x : tensors) {
    result.push_back(x.detach().clone().requires_grad_(true));
  }
  return result;
}

/// Outputs and the gradients of all inputs, for the given output gradients.
struct Outcome {
  Tensors outputs, grads;
};
using Program = std::function<Tensors(const Tensors&)>;

inline Outcome run(const Program& program, const Tensors& inputs, const Tensors& output_grads) {
  const Tensors x = leaves(inputs);
  const Tensors y = program(x);
  const Tensors g = torch::autograd::grad(y, x, output_grads, /*retain_graph=*/false, /*create_graph=*/false,
                                          /*allow_unused=*/true);
  Outcome result;
  for (const at::Tensor& t : y) {
    result.outputs.push_back(t.detach());
  }
  result.grads = g;
  return result;
}

/// Largest difference relative to the largest value of `expected`, or to `floor` where that is larger.
inline double distance(const at::Tensor& actual, const at::Tensor& expected, double floor = 1e-300) {
  if (actual.sizes() != expected.sizes()) {
    return INFINITY;
  }
  if (expected.numel() == 0) {
    return 0;
  }
  const at::Tensor a = actual.to(at::kDouble), e = expected.to(at::kDouble);
  const double top = std::max(floor, e.abs().max().item<double>());
  const double gap = (a - e).abs().max().item<double>();
  return std::isnan(gap) ? INFINITY : gap / top;
}

inline void expect_close(const Tensors& actual, const Tensors& expected, double tolerance, const char* what,
                         double floor = 1e-300) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LE(distance(actual[i], expected[i], floor), tolerance) << what << " " << i;
  }
}

/// Outputs and gradients of `kernel` in `type` against those of `plain` in double on the same (rounded) numbers, which
/// should be around 1: a gradient that is far smaller is a difference of such, and no more exact than they.
inline void compare(const Program& kernel, const Program& plain, const Tensors& inputs, const Tensors& output_grads,
                    at::ScalarType type, double tolerance) {
  Tensors x, x64, g, g64;
  for (const at::Tensor& t : inputs) {
    x.push_back(t.to(type));
    x64.push_back(x.back().to(at::kDouble));
  }
  for (const at::Tensor& t : output_grads) {
    g.push_back(t.to(type));
    g64.push_back(g.back().to(at::kDouble));
  }
  const Outcome actual = run(kernel, x, g), expected = run(plain, x64, g64);
  for (const at::Tensor& t : actual.grads) {
    EXPECT_EQ(t.scalar_type(), type);
  }
  expect_close(actual.outputs, expected.outputs, tolerance, "output", 0.5);
  expect_close(actual.grads, expected.grads, tolerance, "gradient", 0.5);
}

/// A type and the distance from exact that its roundings allow.
struct Precision {
  at::ScalarType type;
  double tolerance;
};
inline const std::vector<Precision> kPrecisions = {
    {at::kDouble, 1e-12}, {at::kFloat, 4e-6}, {at::kBFloat16, 2.5e-2}, {at::kHalf, 1e-2}};

/// Central differences of sum(output * grad) at some elements of each input, in double.
inline void check_gradients(const Program& program, const Tensors& inputs, const Tensors& output_grads) {
  const Outcome analytic = run(program, inputs, output_grads);
  const auto value = [&](const Tensors& x) {
    const Tensors y = program(x);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      sum += (y[i].detach() * output_grads[i]).sum().item<double>();
    }
    return sum;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (int64_t at = 0; at < inputs[i].numel(); at += std::max<int64_t>(1, inputs[i].numel() / 5)) {
      Tensors up = inputs, down = inputs;
      up[i] = inputs[i].clone();
      down[i] = inputs[i].clone();
      up[i].view(-1)[at] += 1e-6;
      down[i].view(-1)[at] -= 1e-6;
      const double slope = (value(up) - value(down)) / 2e-6;
      EXPECT_NEAR(analytic.grads[i].reshape(-1)[at].item<double>(), slope, 1e-6 * (1 + std::fabs(slope)));
    }
  }
}

/// Runs with a number of threads, and puts the old number back.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace tetra::test
