#include "parallel/optim/grad_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/scalar_tensor.h>

#include "kernels/error.h"
#include "kernels/optimizer_step.h"
#include "mesh/collectives.h"
#include "mesh/group.h"

namespace tetra {
namespace {

// The part of a segment that no lower tp rank holds too. Only cuts along dim 0, whose ranges are runs of memory, and
// whole tensors overlap.
double owned_sum_of_squares(const UnitState& state, const Segment& segment, int64_t tp_rank) {
  const Parameter& parameter = *segment.parameter;
  const auto grad = state.grad_shard.narrow(0, segment.offset, segment.size());
  const auto owned = parameter.cut.owned_local(tp_rank);
  const auto shape = parameter.slice.local_shape();
  const int64_t held = shape.empty() ? 1 : shape[static_cast<size_t>(parameter.cut.dim())];
  int64_t total = 0;
  for (const Range& range : owned) {
    total += range.size();
  }
  if (total == held) {
    return sum_of_squares(grad);
  }
  require(total == 0 || parameter.cut.dim() == 0, "{}: ranks share a part of dim {}; only dim 0 may be shared",
          parameter.name, parameter.cut.dim());
  const int64_t row = held == 0 ? 0 : parameter.slice.local_numel() / held;
  double sum = 0;
  for (const Range& range : owned) {
    const Range part = intersect(segment.flat, {range.begin * row, range.end * row});
    if (part.size() > 0) {
      sum += sum_of_squares(grad.narrow(0, part.begin - segment.flat.begin, part.size()));
    }
  }
  return sum;
}

}  // namespace

double global_grad_norm(const ModelState& state) {
  double sum = 0;
  for (const UnitState& unit : state.units()) {
    for (const Segment& segment : unit.segments) {
      sum += owned_sum_of_squares(unit, segment, state.parameters().tp_rank());
    }
  }
  auto total = at::scalar_tensor(sum, at::TensorOptions().dtype(at::kDouble).device(state.parameters().device()));
  all_reduce(total, *state.groups().shard, "grad_norm.shards");
  all_reduce(total, *state.groups().tp, "grad_norm");
  return std::sqrt(total.item<double>());
}

double clip_factor(double norm, double max_norm) {
  return std::min(1.0, max_norm / (norm + 1e-6));
}

void clip_grad_value(ModelState& state, double limit) {
  for (UnitState& unit : state.units()) {
    unit.grad_shard.clamp_(-limit, limit);
  }
}

}  // namespace tetra
