#include "parallel/optim/grad_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/scalar_tensor.h>

#include "kernels/optimizer_step.h"
#include "mesh/collectives.h"
#include "mesh/group.h"

namespace tetra {
namespace {

double owned_sum_of_squares(const Parameter& parameter, int64_t tp_rank) {
  double sum = 0;
  for (const Range& range : parameter.cut.owned_local(tp_rank)) {
    if (range.size() == 0) {
      continue;
    }
    const auto& grad = parameter.main_grad;
    const bool all = grad.dim() == 0 || range.size() == grad.size(parameter.cut.dim());
    sum += sum_of_squares(all ? grad : grad.narrow(parameter.cut.dim(), range.begin, range.size()).contiguous());
  }
  return sum;
}

}  // namespace

double global_grad_norm(const ParameterSet& parameters, const Group& tp) {
  double sum = 0;
  for (const Parameter& parameter : parameters.all()) {
    sum += owned_sum_of_squares(parameter, parameters.tp_rank());
  }
  auto total = at::scalar_tensor(sum, at::TensorOptions().dtype(at::kDouble).device(parameters.device()));
  all_reduce(total, tp, "grad_norm");
  return std::sqrt(total.item<double>());
}

double clip_factor(double norm, double max_norm) {
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tetra
