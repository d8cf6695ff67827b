// On a machine with a GPU: the plug-in's RMSNorm against double arithmetic on the CPU, and a group of one rank over
// NCCL. Exit code 77 where there is no GPU, or not the libraries to use it.

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdio>

#include "kernels/error.h"
#include "mesh/backend/cuda_plugin.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"

namespace {

using tetra::CudaPlugin;
constexpr double kEps = 1e-5;
constexpr int kNoGpu = 77;

/// Smooth values between -scale and scale that differ everywhere.
at::Tensor wave(at::IntArrayRef shape, double frequency, double scale) {
  int64_t count = 1;
  for (int64_t size : shape) {
    count *= size;
  }
  return (at::sin(at::arange(count, at::kDouble) * frequency) * scale).view(shape);
}

struct Expected {
  at::Tensor y, grad_x, grad_weight;
};

/// In double, from the rounded inputs; the quotient is rounded to `type` as kernels/norm.h says.
Expected reference(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight) {
  const auto type = x.scalar_type();
  const at::Tensor xd = x.to(at::kDouble), gd = grad.to(at::kDouble), wd = weight.to(at::kDouble);
  const at::Tensor inverse = (xd * xd).mean(-1, true).add(kEps).rsqrt();
  const at::Tensor normed = (xd * inverse).to(type).to(at::kDouble);
  const at::Tensor gw = gd * wd;
  const at::Tensor slope = (gw * xd).mean(-1, true) * inverse * inverse * inverse;
  return {normed * wd, gw * inverse - xd * slope, (gd * normed).sum(0)};
}

bool report(const char* what, const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  const at::Tensor difference = (got.to(at::kCPU).to(at::kDouble) - expected).abs();
  const double error = difference.max().item<double>() / expected.abs().max().item<double>();
  const bool good = error <= tolerance;  // false for NaN
  std::printf("  %-12s error %.2e of the largest value, allowed %.0e: %s\n", what, error, tolerance,
              good ? "ok" : "WRONG");
  return good;
}

bool check_rms_norm(const CudaPlugin& cuda, at::ScalarType type, int64_t tokens, int64_t features) {
  std::printf("rms_norm %s [%ld, %ld]\n", toString(type), static_cast<long>(tokens), static_cast<long>(features));
  const at::Tensor x = wave({tokens, features}, 0.7, 3).to(type);
  const at::Tensor grad = wave({tokens, features}, 1.3, 2).to(type);
  const at::Tensor weight = wave({features}, 0.11, 1).add(1.5).to(type);
  const Expected expected = reference(grad, x, weight);
  const auto device = [](const at::Tensor& t) { return t.to(at::Device(at::kCUDA, 0)); };
  const at::Tensor y = cuda.rms_norm(device(x), device(weight), kEps);
  const auto [grad_x, grad_weight] = cuda.rms_norm_backward(device(grad), device(x), device(weight), kEps);
  const auto again = cuda.rms_norm_backward(device(grad), device(x), device(weight), kEps);
  const double tolerance = type == at::kFloat ? 5e-6 : 8e-3;  // bf16: half a unit in the last place is 4e-3
  bool good = report("y", y, expected.y, tolerance);
  good &= report("grad_x", grad_x, expected.grad_x, tolerance);
  good &= report("grad_weight", grad_weight, expected.grad_weight, tolerance);
  const bool same = at::equal(grad_x, again.first) && at::equal(grad_weight, again.second);
  std::printf("  run twice: %s\n", same ? "equal to the last bit" : "DIFFERENT");
  return good && same;
}

bool check_refusals(const CudaPlugin& cuda) {
  const at::Tensor weight = wave({8}, 0.1, 1).to(at::kFloat).to(at::Device(at::kCUDA, 0));
  try {
    cuda.rms_norm(wave({2, 8}, 0.1, 1).to(at::kFloat), weight, kEps);
  } catch (const tetra::Error& error) {
    std::printf("a CPU tensor is refused: %s\n", error.what());
    return true;
  }
  std::printf("a CPU tensor is NOT refused\n");
  return false;
}

/// A group of one rank goes through the whole of NCCL: store, communicator, stream, kernel.
bool check_nccl(const CudaPlugin& cuda) {
  const tetra::Place place;
  const auto fabric = cuda.make_nccl_fabric({&place, c10::make_intrusive<c10d::HashStore>(), nullptr});
  const auto group = fabric->make_group({0}, "world", std::chrono::seconds(60));
  const at::Tensor before = wave({1000}, 0.3, 1).to(at::kFloat);
  std::vector<at::Tensor> x = {before.to(at::Device(at::kCUDA, 0))};
  group->allreduce(x, c10d::AllreduceOptions())->wait();
  at::Tensor gathered = x[0].clone();
  group->_allgather_base(gathered, x[0], c10d::AllgatherOptions())->wait();
  const bool good = at::equal(gathered.to(at::kCPU), before);
  std::printf("nccl group of one (%s): %s\n", fabric->name().c_str(), good ? "ok" : "WRONG");
  return good;
}

}  // namespace

int main() {
  const CudaPlugin* cuda = nullptr;
  try {
    cuda = &tetra::load_cuda_plugin();
    cuda->select_device(0);
  } catch (const std::exception& error) {
    std::printf("skipped: %s\n", error.what());
    return kNoGpu;
  }
  bool good = check_refusals(*cuda);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [tokens, features] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {600, 512}, {1025, 4096}, {2, 12290}, {5, 20000}}) {
      good &= check_rms_norm(*cuda, type, tokens, features);
    }
  }
  good &= check_nccl(*cuda);
  std::printf(good ? "all good\n" : "FAILED\n");
  return good ? 0 : 1;
}
