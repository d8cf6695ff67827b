#include "kernels/attention.h"

#include <cmath>
#include <memory>

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/composite.h"
#include "kernels/cpu/dispatch.h"

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void product(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const float* a,
             const float* b, float* c) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, /*is_vnni=*/false);
}
void product(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const cpu::Bf16* a,
             const cpu::Bf16* b, float* c) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}

/// Whether libtorch has small matrix products for T on this machine; the answer is a product of ones.
template <typename T>
bool has_product() {
  static const bool has = [] {
    T one;
    if constexpr (sizeof(T) == 2) {
      one = {0x3f80};
    } else {
      one = 1;
    }
    std::vector<T> ones(256, one);
    std::vector<float> result(256);
    try {
      product(16, 16, 16, 16, 16, 16, false, ones.data(), ones.data(), result.data());
    } catch (const std::exception&) {
      return false;
    }
    return result.front() == 16.0f && result.back() == 16.0f;
  }();
  return has;
}

/// Our blocks serve even head sizes of the types that have products; ATen's flash kernel the rest, among them double.
bool use_blocks(const at::Tensor& q) {
  const bool dim = q.size(3) % 2 == 0 && q.size(3) > 0 && q.size(3) <= 512;
  return dim && ((q.scalar_type() == at::kFloat && has_product<float>()) ||
                 (q.scalar_type() == at::kBFloat16 && has_product<cpu::Bf16>()));
}

template <typename T>
cpu::Heads<T> heads_of(const at::Tensor& x) {
  using Plain = std::remove_const_t<T>;
  cpu::Heads<T> heads;
  if constexpr (std::is_const_v<T>) {
    heads.data = cpu::input<Plain>(x);
  } else {
    heads.data = cpu::output<Plain>(x);
  }
  heads.batch_stride = x.stride(0);
  heads.row_stride = x.stride(1);
  heads.head_stride = x.stride(2);
  return heads;
}

template <typename T>
cpu::AttentionArgs<T> block_args(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& lse,
                                 bool causal, double scale) {
  cpu::AttentionArgs<T> args{};
  args.queries = q.size(1);
  args.keys = k.size(1);
  args.heads = q.size(2);
  args.kv_heads = k.size(2);
  args.dim = q.size(3);
  args.scale = static_cast<float>(scale);
  args.causal = causal;
  args.product = product;
  args.q = heads_of<const T>(q);
  args.k = heads_of<const T>(k);
  args.v = heads_of<const T>(v);
  args.lse = cpu::output<float>(lse);
  return args;
}

template <typename F>
void with_attention_loops(const at::Tensor& q, const F& f) {
  if (q.scalar_type() == at::kBFloat16) {
    f(cpu::loop_table().attention_bf16, cpu::Bf16{});
  } else {
    f(cpu::loop_table().attention_f32, float{});
  }
}

/// f(args, batch, kv_head, scratch) for all pairs, shared over the threads.
template <typename T, typename F>
void over_kv_heads(const cpu::AttentionArgs<T>& args, int64_t batches, int64_t scratch_floats, const F& f) {
  at::parallel_for(0, batches * args.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = at::empty({scratch_floats}, at::kFloat);
    for (int64_t i = begin; i < end; ++i) {
      f(args, i / args.kv_heads, i % args.kv_heads, cpu::output<float>(scratch));
    }
  });
}

/// Half goes through float: few CPUs multiply it, and ATen's loops that do without are many times slower than the
/// copies.
bool through_float(const at::Tensor& q) {
  return q.scalar_type() == at::kHalf;
}

/// Output [B,S,A,D] and log-sum-exp [B,A,S].
variable_list forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale) {
  if (through_float(q)) {
    variable_list result = forward_cpu(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), causal, scale);
    result[0] = result[0].to(q.scalar_type());
    return result;
  }
  if (!use_blocks(q)) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q.transpose(1, 2), k.transpose(1, 2),
                                                                      v.transpose(1, 2), 0.0, causal, {}, scale);
    return {out.transpose(1, 2).contiguous(), lse};
  }
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  with_attention_loops(q, [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    auto args = block_args<T>(q, k, v, lse, causal, scale);
    args.out = heads_of<T>(out);
    over_kv_heads(args, q.size(0), loops.forward_scratch(args), loops.forward);
  });
  return {out, lse};
}

/// Gradients of q, k and v, each like its tensor and contiguous.
variable_list backward_cpu(const at::Tensor& grad, const variable_list& saved, bool causal, double scale) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
  if (through_float(q)) {
    variable_list wide;
    for (const at::Tensor& x : saved) {
      wide.push_back(x.to(at::kFloat));
    }
    variable_list grads = backward_cpu(grad.to(at::kFloat), wide, causal, scale);
    for (at::Tensor& x : grads) {
      x = x.to(q.scalar_type());
    }
    return grads;
  }
  if (!use_blocks(q)) {
    auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad.transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), out.transpose(1, 2), lse, 0.0,
        causal, {}, scale);
    return {grad_q.transpose(1, 2).contiguous(), grad_k.transpose(1, 2).contiguous(),
            grad_v.transpose(1, 2).contiguous()};
  }
  variable_list grads = {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                         at::empty(v.sizes(), v.options())};
  with_attention_loops(q, [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    auto args = block_args<T>(q, k, v, lse, causal, scale);
    args.saved_out = heads_of<const T>(out);
    args.grad_out = heads_of<const T>(grad);
    args.grad_q = heads_of<T>(grads[0]);
    args.grad_k = heads_of<T>(grads[1]);
    args.grad_v = heads_of<T>(grads[2]);
    over_kv_heads(args, q.size(0), loops.backward_scratch(args), loops.backward);
  });
  return grads;
}

class Attention : public torch::autograd::Function<Attention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            bool causal, double scale) {
    const variable_list result = forward_cpu(q, k, v, causal, scale);
    ctx->save_for_backward({q, k, v, result[0], result[1]});
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    return result[0];
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result = backward_cpu(grads[0].contiguous(), ctx->get_saved_variables(),
                                        ctx->saved_data["causal"].toBool(), ctx->saved_data["scale"].toDouble());
    result.resize(5);
    return result;
  }
};

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  require(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
          "attention: q {}, k {}, v {}; [B,S,A,D] with k and v [B,L,G,D] is needed", q.sizes(), k.sizes(), v.sizes());
  require(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "attention: {} kv heads do not divide {} query heads", k.size(2),
          q.size(2));
  require(!causal || q.size(1) == k.size(1), "attention: causal with {} queries and {} keys; they have to be equal",
          q.size(1), k.size(1));
  for (const at::Tensor* x : {&q, &k, &v}) {
    require(x->stride(3) == 1 || x->numel() == 0, "attention: an input with strides {}; the last dim has to be dense",
            x->strides());
    cpu::require_alike(*x, q, "attention", "an input");
  }
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale) {
  check(q, k, v, causal);
  const double factor = scale == 0.0 ? 1.0 / std::sqrt(static_cast<double>(q.size(3))) : scale;
  return cpu::on_cpu(q) ? Attention::apply(q, k, v, causal, factor) : composite::attention(q, k, v, causal, factor);
}

}  // namespace tetra
