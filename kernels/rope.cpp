#include "kernels/rope.h"

#include <cmath>
#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/composite.h"
#include "kernels/cpu/dispatch.h"

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Llama 3.1's scaling: long waves are stretched by `factor`, short ones kept, those between blended.
at::Tensor llama3_scaled(const at::Tensor& frequencies, const RopeConfig& config) {
  const double length = static_cast<double>(config.original_max_position_embeddings);
  const at::Tensor waves = (2 * std::numbers::pi) / frequencies;
  const at::Tensor stretched = frequencies / config.factor;
  const at::Tensor smooth =
      (length / waves - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * stretched + smooth * frequencies;
  const at::Tensor is_long = waves > length / config.low_freq_factor;
  const at::Tensor is_short = waves < length / config.high_freq_factor;
  return at::where(is_long, stretched, at::where(is_short, frequencies, blended));
}

at::Tensor inverse_frequencies(const RopeConfig& config, at::ScalarType dtype) {
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, at::kLong).to(dtype) / config.head_dim;
  at::Tensor frequencies = 1.0 / at::pow(config.theta, exponents);
  if (config.type == "default") {
    return frequencies;
  }
  require(config.factor > 0, "rope: factor is {}; it has to be above 0", config.factor);
  if (config.type == "linear") {
    return frequencies / config.factor;
  }
  require(config.type == "llama3", "rope: type '{}' is not known; use default, linear or llama3", config.type);
  require(config.low_freq_factor > 0 && config.high_freq_factor > config.low_freq_factor,
          "rope: low_freq_factor {} and high_freq_factor {}; 0 < low < high is needed", config.low_freq_factor,
          config.high_freq_factor);
  return llama3_scaled(frequencies, config);
}

template <typename T>
void rotate_rows(const cpu::Loops<T>& loops, const at::Tensor& in, const at::Tensor& out, const RopeTable& table,
                 const at::Tensor& positions, cpu::Acc<T> sign) {
  using A = cpu::Acc<T>;
  const int64_t rows = in.size(1), heads = in.size(2), half = in.size(3) / 2;
  const A *cos = cpu::input<A>(table.cos), *sin = cpu::input<A>(table.sin);
  const int64_t* position = cpu::input<int64_t>(positions);
  const int64_t position_stride = positions.dim() == 2 ? rows : 0;
  const T* from = cpu::input<T>(in);
  T* to = cpu::output<T>(out);
  cpu::share_out(in.size(0) * rows, heads * half * 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / rows, row = i % rows;
      const int64_t at = position[batch * position_stride + row] * half;
      loops.rotate(from + batch * in.stride(0) + row * in.stride(1), in.stride(2),
                   to + batch * out.stride(0) + row * out.stride(1), out.stride(2), heads, half, cos + at, sin + at,
                   sign);
    }
  });
}

void rotate_into(const at::Tensor& in, const at::Tensor& out, const RopeTable& table, const at::Tensor& positions,
                 double sign) {
  if (!cpu::on_cpu(in)) {
    out.copy_(composite::rotate(in, table, positions, sign));
    return;
  }
  cpu::with_type(in.scalar_type(), "rope", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    rotate_rows<T>(loops, in, out, table, positions, static_cast<cpu::Acc<T>>(sign));
  });
}

/// The same memory as a tensor of its own, without autograd's record that it is a view: an output of the function.
at::Tensor same_memory(const at::Tensor& x) {
  return at::empty({0}, x.options()).set_(x.storage(), x.storage_offset(), x.sizes(), x.strides());
}

class Rope : public torch::autograd::Function<Rope> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                               const at::Tensor& sin, const at::Tensor& positions) {
    ctx->save_for_backward({cos, sin, positions});
    ctx->set_materialize_grads(false);
    const at::Tensor q_out = same_memory(q), k_out = same_memory(k);
    rotate_into(q_out, q_out, {cos, sin}, positions, 1);
    rotate_into(k_out, k_out, {cos, sin}, positions, 1);
    return {q_out, k_out};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result(5);
    for (size_t i = 0; i < 2; ++i) {
      if (grads[i].defined() && ctx->needs_input_grad(i)) {
        // Never in place: the gradient may be expanded, or held by someone else.
        const at::Tensor grad = grads[i].stride(3) == 1 ? grads[i] : grads[i].contiguous();
        result[i] = at::empty(grad.sizes(), grad.options());
        rotate_into(grad, result[i], {saved[0], saved[1]}, saved[2], -1);
      }
    }
    return result;
  }
};

void check(const at::Tensor& x, const char* name, const RopeTable& table, const at::Tensor& positions) {
  require(x.dim() == 4 && x.size(3) == 2 * table.cos.size(1) && (x.stride(3) == 1 || x.numel() == 0),
          "rope: {} has sizes {} and strides {}, the table {} columns; [B, S, heads, twice the columns] with a dense "
          "last dim is needed",
          name, x.sizes(), x.strides(), table.cos.size(1));
  require(table.cos.scalar_type() == cpu::accumulate_type(x.scalar_type()),
          "rope: table of {} for {} of {}; make the table in double for double, in float for the others",
          at::toString(table.cos.scalar_type()), name, at::toString(x.scalar_type()));
  const bool shared = positions.dim() == 1 && positions.size(0) == x.size(1);
  const bool own = positions.dim() == 2 && positions.size(0) == x.size(0) && positions.size(1) == x.size(1);
  require(positions.scalar_type() == at::kLong && positions.is_contiguous() && (shared || own),
          "rope: positions of {} with sizes {} for {} of sizes {}; int64 [S] or [B, S] is needed",
          at::toString(positions.scalar_type()), positions.sizes(), name, x.sizes());
}

/// Reading past the table would give numbers, not an error.
void check_range(const at::Tensor& positions, int64_t count) {
  if (!cpu::on_cpu(positions)) {
    return;
  }
  const int64_t* position = cpu::input<int64_t>(positions);
  for (int64_t i = 0; i < positions.numel(); ++i) {
    require(position[i] >= 0 && position[i] < count, "rope: position {} is outside the table of {} positions",
            position[i], count);
  }
}

}  // namespace

RopeTable make_rope_table(const RopeConfig& config, int64_t count, at::ScalarType dtype) {
  require(config.head_dim > 0 && config.head_dim % 2 == 0, "rope: head_dim {} has to be even and above 0",
          config.head_dim);
  require(dtype == at::kFloat || dtype == at::kDouble, "rope: a table of {}; use float or double", at::toString(dtype));
  const at::Tensor positions = at::arange(count, at::kLong).to(dtype);
  const at::Tensor angles = at::outer(positions, inverse_frequencies(config, dtype));
  return {at::cos(angles), at::sin(angles)};
}

std::pair<at::Tensor, at::Tensor> rope_(const at::Tensor& q, const at::Tensor& k, const RopeTable& table,
                                        const at::Tensor& positions) {
  check(q, "q", table, positions);
  check(k, "k", table, positions);
  check_range(positions, table.cos.size(0));
  const variable_list rotated = Rope::apply(q, k, table.cos, table.sin, positions);
  return {rotated[0], rotated[1]};
}

}  // namespace tetra
