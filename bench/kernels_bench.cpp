// Each kernel beside the composition of ATen operations that it replaces, forward and backward, at the sizes of a small
// Llama: 1024 tokens (4 x 256), hidden 512, ffn 1408, vocabulary 8192, 8 heads, 4 kv heads. TETRA_BENCH_THREADS sets
// the threads (default 2).

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/optimizer_step.h"
#include "kernels/rope.h"

namespace tetra {
namespace {

constexpr int64_t B = 4, S = 256, T = B * S, H = 512, F = 1408, V = 8192, A = 8, G = 4, D = 64;
constexpr double kEps = 1e-5;

using Tensors = std::vector<at::Tensor>;
using Program = std::function<Tensors(const Tensors&)>;

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::kFloat).to(type).requires_grad_(true);
}

/// Forward and backward of `program`.
void step(benchmark::State& state, const Program& program, const Tensors& inputs) {
  Tensors grads;
  for (const at::Tensor& y : program(inputs)) {
    grads.push_back(at::randn_like(y));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(torch::autograd::grad(program(inputs), inputs, grads));
  }
}

void pair(const std::string& name, at::ScalarType type, const Program& ours, const Program& eager,
          const std::vector<std::vector<int64_t>>& sizes) {
  const std::string suffix = type == at::kFloat ? "/fp32" : "/bf16";
  Tensors inputs;
  for (const std::vector<int64_t>& s : sizes) {
    inputs.push_back(leaf(s, type));
  }
  for (const auto& [who, program] : {std::pair("/tetra", ours), std::pair("/eager", eager)}) {
    benchmark::RegisterBenchmark((name + suffix + who).c_str(), step, program, inputs)->UseRealTime();
  }
}

Tensors eager_rms_norm(const Tensors& t) {
  const at::Tensor x = t[0].to(at::kFloat);
  return {(x * at::rsqrt(x.pow(2).mean(-1, true) + kEps)).to(t[0].scalar_type()) * t[1]};
}

at::Tensor eager_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  return x * cos + at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1) * sin;
}

void register_rope(at::ScalarType type) {
  RopeConfig config;
  config.head_dim = D;
  const RopeTable table = make_rope_table(config, S, at::kFloat);
  const at::Tensor positions = at::arange(S, at::kLong);
  const auto wide = [&](const at::Tensor& t) { return at::cat({t, t}, -1).unsqueeze(1).to(type); };
  const at::Tensor cos = wide(table.cos), sin = wide(table.sin);
  // Both start from a tensor that may be overwritten: the copy is part of both.
  pair(
      "rope", type,
      [=](const Tensors& t) -> Tensors {
        const auto [q, k] = rope_(t[0].clone(), t[1].clone(), table, positions);
        return {q, k};
      },
      [=](const Tensors& t) -> Tensors {
        return {eager_rotate(t[0].clone(), cos, sin), eager_rotate(t[1].clone(), cos, sin)};
      },
      {{B, S, A, D}, {B, S, G, D}});
}

at::Tensor eager_attention(const Tensors& t) {
  const at::Tensor y = at::scaled_dot_product_attention(t[0].transpose(1, 2), t[1].transpose(1, 2),
                                                        t[2].transpose(1, 2), {}, 0.0, true, {}, /*enable_gqa=*/true);
  return y.transpose(1, 2).contiguous();
}

void register_autograd_kernels(at::ScalarType type) {
  pair("rms_norm", type, [](const Tensors& t) -> Tensors { return {rms_norm(t[0], t[1], kEps)}; }, eager_rms_norm,
       {{T, H}, {H}});
  pair(
      "layer_norm", type, [](const Tensors& t) -> Tensors { return {layer_norm(t[0], t[1], t[2], kEps)}; },
      [](const Tensors& t) -> Tensors { return {at::layer_norm(t[0], {H}, t[1], t[2], kEps)}; }, {{T, H}, {H}, {H}});
  register_rope(type);
  pair(
      "swiglu", type, [](const Tensors& t) -> Tensors { return {swiglu(t[0], t[1])}; },
      [](const Tensors& t) -> Tensors { return {at::silu(t[0]) * t[1]}; }, {{T, F}, {T, F}});
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    const char* name = kind == Gelu::tanh ? "tanh" : "none";
    pair(
        std::string("gelu_") + name, type, [=](const Tensors& t) -> Tensors { return {gelu(t[0], kind)}; },
        [=](const Tensors& t) -> Tensors { return {at::gelu(t[0], name)}; }, {{T, F}});
  }
  pair(
      "attention", type, [](const Tensors& t) -> Tensors { return {attention(t[0], t[1], t[2], true)}; },
      [](const Tensors& t) -> Tensors { return {eager_attention(t)}; }, {{B, S, A, D}, {B, S, G, D}, {B, S, G, D}});
  pair(
      "linear_qkv", type,
      [](const Tensors& t) {
        return linear(t[0], {t[1], t[2], t[3]}, {});
      },
      [](const Tensors& t) -> Tensors {
        return {at::linear(t[0], t[1]), at::linear(t[0], t[2]), at::linear(t[0], t[3])};
      },
      {{T, H}, {A * D, H}, {G * D, H}, {G * D, H}});
}

void cross_entropy_ours(benchmark::State& state, const at::Tensor& logits, const at::Tensor& labels) {
  at::Tensor scratch = logits.clone();
  for (auto _ : state) {
    scratch.copy_(logits);
    const at::Tensor max = cross_entropy_row_max(scratch);
    const at::Tensor sums = cross_entropy_partials(scratch, labels, 0, max);
    cross_entropy_grad_(scratch, labels, 0, max, sums[0], 1.0 / T);
  }
}

/// As transformers does it: the logits in fp32.
void cross_entropy_eager(benchmark::State& state, const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor x = logits.clone().requires_grad_(true);
  for (auto _ : state) {
    benchmark::DoNotOptimize(torch::autograd::grad({at::cross_entropy_loss(x.to(at::kFloat), labels)}, {x}));
  }
}

constexpr int64_t kParameters = 4 << 20;

void adamw_ours(benchmark::State& state, at::ScalarType type) {
  at::Tensor p = at::randn({kParameters}), m = at::zeros_like(p), v = at::zeros_like(p), copy;
  const at::Tensor grad = at::randn({kParameters});
  if (type != at::kFloat) {
    copy = p.to(type);
  }
  for (auto _ : state) {
    adamw_step(p, grad, m, v, copy,
               {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3});
  }
}

void adamw_eager(benchmark::State& state, at::ScalarType type) {
  at::Tensor p = at::randn({kParameters}), m = at::zeros_like(p), v = at::zeros_like(p), copy = p.to(type);
  const at::Tensor grad = at::randn({kParameters});
  for (auto _ : state) {
    p.mul_(1 - 1e-4);
    m.lerp_(grad, 0.1);
    v.mul_(0.95).addcmul_(grad, grad, 0.05);
    p.addcdiv_(m, v.sqrt().div_(0.3).add_(1e-8), -1e-3);
    if (type != at::kFloat) {
      copy.copy_(p);
    }
  }
}

void sum_of_squares_ours(benchmark::State& state, at::ScalarType type) {
  const at::Tensor x = at::randn({kParameters}).to(type);
  for (auto _ : state) {
    benchmark::DoNotOptimize(sum_of_squares(x));
  }
}

void sum_of_squares_eager(benchmark::State& state, at::ScalarType type) {
  const at::Tensor x = at::randn({kParameters}).to(type);
  for (auto _ : state) {
    const double norm = x.norm().item<double>();
    benchmark::DoNotOptimize(norm * norm);
  }
}

/// Products of [T, K] by [N, K], as the layers have them; reports GFLOP/s.
void gemm(benchmark::State& state, at::ScalarType type, int64_t n) {
  const at::Tensor x = at::randn({T, H}).to(type), w = at::randn({n, H}).to(type), dy = at::randn({T, n}).to(type);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::mm(x, w.t()));
    benchmark::DoNotOptimize(at::mm(dy, w));
    benchmark::DoNotOptimize(at::mm(dy.t(), x));
  }
  const double flops = 6.0 * static_cast<double>(T * H * n);
  state.counters["GFLOP/s"] = benchmark::Counter(1e-9 * flops, benchmark::Counter::kIsIterationInvariantRate);
}

void register_plain_kernels(at::ScalarType type) {
  const std::string suffix = type == at::kFloat ? "/fp32" : "/bf16";
  const at::Tensor logits = at::randn({T, V}).to(type), labels = at::randint(V, {T}, at::kLong);
  const auto add = [&](const std::string& name, auto function, auto... args) {
    benchmark::RegisterBenchmark(name.c_str(), function, args...)->UseRealTime();
  };
  add("cross_entropy" + suffix + "/tetra", cross_entropy_ours, logits, labels);
  add("cross_entropy" + suffix + "/eager", cross_entropy_eager, logits, labels);
  add("adamw" + suffix + "/tetra", adamw_ours, type);
  add("adamw" + suffix + "/eager", adamw_eager, type);
  add("sum_of_squares" + suffix + "/tetra", sum_of_squares_ours, type);
  add("sum_of_squares" + suffix + "/eager", sum_of_squares_eager, type);
  for (const int64_t n : {H, F, V}) {
    add("gemm" + suffix + "/" + std::to_string(n), gemm, type, n);
  }
}

}  // namespace
}  // namespace tetra

int main(int argc, char** argv) {
  const char* threads = std::getenv("TETRA_BENCH_THREADS");
  at::set_num_threads(threads == nullptr ? 2 : std::atoi(threads));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    tetra::register_autograd_kernels(type);
    tetra::register_plain_kernels(type);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
