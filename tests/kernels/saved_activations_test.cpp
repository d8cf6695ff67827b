// What a Llama layer keeps for its backward, to the byte, and what each kernel keeps. Also: threads stay on their
// cores.

#include <ctime>
#include <map>
#include <thread>

#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

/// Bytes of each memory that autograd saved, by its address.
using Ledger = std::map<const void*, int64_t>;
thread_local Ledger* ledger = nullptr;

class Recorder : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor;
    (*ledger)[tensor.storage().data()] = static_cast<int64_t>(tensor.storage().nbytes());
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  at::Tensor tensor_;
};

/// libtorch takes hooks for saved tensors from its engine alone.
class RecordingEngine : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return ledger == nullptr ? nullptr : std::make_unique<Recorder>();
  }
};

torch::autograd::Engine& recording_engine() {
  static RecordingEngine engine;
  return engine;
}
const bool installed = [] {
  torch::autograd::set_default_engine_stub(recording_engine);
  return true;
}();

/// Bytes saved by f(), without those memories that `others` hold.
int64_t saved_bytes(const std::function<at::Tensor()>& f, const Tensors& others) {
  Ledger saved;
  ledger = &saved;
  const at::Tensor y = f();
  ledger = nullptr;
  for (const at::Tensor& x : others) {
    saved.erase(x.storage().data());
  }
  int64_t total = 0;
  for (const auto& [address, bytes] : saved) {
    total += bytes;
  }
  EXPECT_TRUE(y.requires_grad() && installed);
  return total;
}

struct Sizes {
  int64_t batch, sequence, hidden, heads, kv_heads, ffn;
};

/// A Llama layer of these kernels. Weights: two norms, then q, k, v, o, gate, up, down.
at::Tensor layer(const at::Tensor& x, const Tensors& w, const RopeTable& table, const at::Tensor& positions,
                 const Sizes& s) {
  const int64_t dim = s.hidden / s.heads;
  const auto heads = [&](const at::Tensor& t, int64_t count) { return t.view({s.batch, s.sequence, count, dim}); };
  const Tensors qkv = linear(rms_norm(x, w[0], 1e-5), {w[2], w[3], w[4]}, {});
  const auto [q, k] = rope_(heads(qkv[0], s.heads), heads(qkv[1], s.kv_heads), table, positions);
  const at::Tensor mixed = attention(q, k, heads(qkv[2], s.kv_heads), true);
  const at::Tensor middle = x + linear(mixed.view({s.batch * s.sequence, s.hidden}), w[5]);
  const Tensors both = linear(rms_norm(middle, w[1], 1e-5), {w[6], w[7]}, {});
  return middle + linear(swiglu(both[0], both[1]), w[8]);
}

TEST(SavedActivations, a_llama_layer_keeps_what_the_formula_says) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const Sizes s{2, 64, 128, 8, 4, 352};
    const int64_t h = s.hidden, kv = h / s.heads * s.kv_heads, tokens = s.batch * s.sequence;
    const Tensors w = leaves({random({h}, type), random({h}, type), random({h, h}, type), random({kv, h}, type),
                              random({kv, h}, type), random({h, h}, type), random({s.ffn, h}, type),
                              random({s.ffn, h}, type), random({h, s.ffn}, type)});
    RopeConfig config;
    config.head_dim = h / s.heads;
    const RopeTable table = make_rope_table(config, s.sequence, type == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor positions = at::arange(s.sequence, at::kLong);
    const at::Tensor x = random({tokens, h}, type).requires_grad_(true);
    Tensors others = w;
    others.insert(others.end(), {table.cos, table.sin, positions});
    const int64_t bytes = saved_bytes([&] { return layer(x, w, table, positions, s); }, others);
    // The formula is in bytes of bf16 and leaves out the log-sum-exp of attention, one number a head and token.
    const int64_t statistics = tokens * s.heads * (type == at::kDouble ? 8 : 4);
    const int64_t formula = tokens * (12 * h + 4 * h * s.kv_heads / s.heads + 6 * s.ffn);
    EXPECT_EQ(bytes - statistics, formula * static_cast<int64_t>(at::elementSize(type)) / 2);
  }
}

TEST(SavedActivations, gelu_and_layer_norm_keep_their_input) {
  const Tensors w = leaves({random({32}, at::kBFloat16), random({32}, at::kBFloat16)});
  const at::Tensor x = random({16, 32}, at::kBFloat16).requires_grad_(true);
  EXPECT_EQ(saved_bytes([&] { return gelu(x, Gelu::tanh); }, {}), 16 * 32 * 2);
  EXPECT_EQ(saved_bytes([&] { return layer_norm(x, w[0], w[1], 1e-5); }, w), 16 * 32 * 2);
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double process_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

TEST(Threads, a_rank_with_one_thread_works_on_that_thread_alone) {
  double own = 0, other = 0;
  const auto work = [](double& seconds) {
    at::set_num_threads(1);
    const double begin = thread_seconds();
    const Tensors t = leaves({random({512, 512}, at::kBFloat16), random({512, 512}, at::kBFloat16),
                              random({512}, at::kBFloat16), random({2, 256, 4, 64}, at::kBFloat16)});
    for (int i = 0; i < 10; ++i) {
      const at::Tensor y = rms_norm(linear(t[0], t[1]), t[2], 1e-5);
      (swiglu(y, y).sum() + attention(t[3], t[3], t[3], true).sum()).backward();
    }
    seconds = thread_seconds() - begin;
  };
  const double begin = process_seconds();
  std::thread first([&] { work(own); }), second([&] { work(other); });
  first.join();
  second.join();
  // Work done by helper threads would show in the process's time but not in the two threads'.
  EXPECT_NEAR(process_seconds() - begin, own + other, 0.1 * (own + other) + 0.02);
}

}  // namespace
}  // namespace tetra::test
