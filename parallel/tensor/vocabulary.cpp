#include "parallel/tensor/vocabulary.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "mesh/collectives.h"
#include "mesh/group.h"

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct VocabCrossEntropy : Function<VocabCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels,
                            int64_t vocab_begin, double scale, const Group* group, const std::string& site,
                            bool wants_gradient) {
    auto row_max = cross_entropy_row_max(logits);
    all_reduce(row_max, *group, site + ".max", ReduceOp::max);
    auto partials = cross_entropy_partials(logits, labels, vocab_begin, row_max);
    all_reduce(partials, *group, site + ".sum");
    const auto row_sum = partials[0];
    const auto losses = at::where(labels != kIgnoreIndex, at::log(row_sum) - partials[1], 0.0);
    if (wants_gradient) {
      auto overwritten = logits.detach();
      ctx->save_for_backward({cross_entropy_grad_(overwritten, labels, vocab_begin, row_max, row_sum, scale)});
    }
    return losses.sum(at::kDouble) * scale;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto grad = ctx->get_saved_variables()[0];
    if (grads[0].item<double>() != 1.0) {
      grad = grad * grads[0].to(grad.scalar_type());
    }
    return {grad, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

Stream vocab_parallel_embedding(const at::Tensor& ids, const Parameter& table, const TensorParallel& tp,
                                const std::string& site) {
  const Range held = table.slice.ranges[0];
  const auto is_local = (ids >= held.begin).logical_and(ids < held.end);
  const auto local_ids = (ids - held.begin).clamp(0, std::max<int64_t>(held.size() - 1, 0));
  return leave(Partial(embedding(table.value, local_ids, tp.size() == 1 ? at::Tensor() : is_local)), tp, site);
}

at::Tensor vocab_parallel_cross_entropy(const Varying& logits, const at::Tensor& labels, int64_t vocab_begin,
                                        double scale, const TensorParallel& tp, const std::string& site) {
  const bool wants_gradient = at::GradMode::is_enabled() && logits.tensor.requires_grad();
  return VocabCrossEntropy::apply(logits.tensor, labels, vocab_begin, scale, &tp.group, site, wants_gradient);
}

}  // namespace tetra
