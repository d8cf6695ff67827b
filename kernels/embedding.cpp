#include "kernels/embedding.h"

#include <optional>
#include <type_traits>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Threads own columns, so each sum runs in the tokens' order.
at::Tensor scatter_add_rows(const at::Tensor& grad, const at::Tensor& ids, int64_t rows) {
  const auto wide = grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto sum = at::zeros({rows, grad.size(1)}, grad.options().dtype(wide));
  if (!grad.device().is_cpu()) {
    return sum.index_add_(0, ids, grad.to(wide)).to(grad.scalar_type());
  }
  const int64_t tokens = grad.size(0);
  const int64_t width = grad.size(1);
  const auto* row_of = ids.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, grad.scalar_type(), "embedding_backward", [&] {
    using Wide = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    const auto* from = grad.const_data_ptr<scalar_t>();
    auto* to = sum.mutable_data_ptr<Wide>();
    at::parallel_for(0, width, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = begin; h < end; ++h) {
          to[row_of[t] * width + h] += static_cast<Wide>(from[t * width + h]);
        }
      }
    });
  });
  return sum.to(grad.scalar_type());
}

struct Embedding : Function<Embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& ids,
                            const std::optional<at::Tensor>& held) {
    ctx->save_for_backward({ids, held.value_or(at::Tensor())});
    ctx->saved_data["rows"] = table.size(0);
    auto rows = table.index_select(0, ids);
    return held ? rows.mul_(held->unsqueeze(1)) : rows;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& held = saved[1];
    const auto grad = held.defined() ? grads[0].mul(held.unsqueeze(1)) : grads[0];
    return {scatter_add_rows(grad.contiguous(), saved[0], ctx->saved_data["rows"].toInt()), {}, {}};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& held) {
  return Embedding::apply(table, ids, held.defined() ? std::optional(held) : std::nullopt);
}

}  // namespace tetra
