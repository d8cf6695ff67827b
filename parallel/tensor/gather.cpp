#include "parallel/tensor/gather.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "mesh/collectives.h"
#include "mesh/group.h"

namespace tetra {

std::optional<at::Tensor> gather_whole(const at::Tensor& local, const TpCut& cut, const Group& tp, bool wanted,
                                       const std::string& site) {
  if (tp.size() == 1 || cut.is_replicated()) {
    return wanted ? std::optional(local.detach().cpu().contiguous()) : std::nullopt;
  }
  int64_t widest = 0;
  for (int rank = 0; rank < tp.size(); ++rank) {
    widest = std::max(widest, cut.slice(rank).local_numel());
  }
  auto mine = at::zeros({widest}, local.options().requires_grad(false));
  mine.narrow(0, 0, local.numel()).copy_(local.detach().reshape({-1}));
  auto all = at::empty({tp.size(), widest}, mine.options());
  all_gather(all, mine, tp, site);
  if (!wanted) {
    return std::nullopt;
  }
  auto whole = at::empty(cut.global_shape(), at::TensorOptions().dtype(local.scalar_type()));
  for (int rank = 0; rank < tp.size(); ++rank) {
    const Slice slice = cut.slice(rank);
    const auto part = all[rank].narrow(0, 0, slice.local_numel()).view(slice.local_shape());
    int64_t offset = 0;
    for (const Range& range : slice.ranges) {
      whole.narrow(slice.dim, range.begin, range.size()).copy_(part.narrow(slice.dim, offset, range.size()));
      offset += range.size();
    }
  }
  return whole;
}

}  // namespace tetra
