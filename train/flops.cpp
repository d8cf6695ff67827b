#include "train/flops.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

namespace tetra {

double model_flops_per_token(const ModelConfig& c, int64_t seq_len) {
  const auto h = static_cast<double>(c.hidden_size);
  const auto queries = static_cast<double>(c.num_heads * c.head_dim);
  const auto keys = static_cast<double>(c.num_kv_heads * c.head_dim);
  const double feed_forward = (c.model_type == "gpt2" ? 2.0 : 3.0) * h * static_cast<double>(c.intermediate_size);
  const double layer = h * (2 * queries + 2 * keys) + feed_forward;
  const double weights = static_cast<double>(c.num_layers) * layer + h * static_cast<double>(c.vocab_size);
  const double attention = static_cast<double>(c.num_layers) * 12 * queries * static_cast<double>(seq_len) / 2;
  return 6 * weights + attention;
}

namespace {

double measure(at::ScalarType type) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kSize = 768;
  const auto a = at::ones({kSize, kSize}, type);
  const auto b = at::ones({kSize, kSize}, type);
  auto c = at::empty({kSize, kSize}, type);
  double best = 1e30;
  for (int i = 0; i < 10; ++i) {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(c, a, b);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * kSize * kSize * kSize / best;
}

}  // namespace

double measured_peak_flops(at::ScalarType type, int threads) {
  static std::mutex mutex;  // the machine's property, the same for every rank
  static std::map<std::pair<at::ScalarType, int>, double> known;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.try_emplace({type, threads}, 0.0);
  if (is_new) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    entry->second = measure(type == at::kHalf ? at::kFloat : type);  // the CPU multiplies halves as floats
    at::set_num_threads(before);
  }
  return entry->second;
}

}  // namespace tetra
