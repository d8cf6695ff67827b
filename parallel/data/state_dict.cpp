#include "parallel/data/state_dict.h"

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "kernels/error.h"
#include "mesh/collectives.h"
#include "mesh/group.h"
#include "parallel/data/state_parts.h"
#include "parallel/data/state_shards.h"
#include "parallel/tensor/gather.h"

namespace tetra {
namespace {

const at::Tensor& find(const StateDict& dict, const std::string& name) {
  const auto found = dict.find(name);
  require(found != dict.end(), "state {} is missing; there are {} others", name, dict.size());
  return found->second;
}

}  // namespace

StateDict full_state(ModelState& state, Optimizer* optimizer, bool wanted) {
  StateDict dict;
  const ShardGroups& groups = state.groups();
  for_each_shard(state, optimizer, [&](const std::string& kind, size_t unit, const at::Tensor& shard) {
    const Unit& layout = state.units()[unit].unit;
    const auto mine = shard.to(state.parameters().device()).contiguous();
    auto all = at::empty({layout.padded(groups.shard->size())}, mine.options());
    all_gather(all, mine, *groups.shard, "state_dict.full");
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      const Parameter& parameter = *layout.parameters[i];
      const auto local = all.narrow(0, layout.offsets[i], parameter.slice.local_numel());
      const auto whole = gather_whole(local, parameter.cut, *groups.tp, wanted, "state_dict.full");
      if (whole) {
        dict[kind + "/" + parameter.name] = whole->view(parameter.cut.global_shape()).clone();
      }
    }
  });
  return dict;
}

void load_full_state(ModelState& state, Optimizer* optimizer, const StateDict& dict) {
  std::vector<StatePart> parts = optimizer == nullptr ? weights_to_load(state) : parts_to_load(state, *optimizer);
  for (StatePart& part : parts) {
    at::Tensor box = find(dict, part.name);
    require(box.sizes() == at::IntArrayRef(part.global_shape), "state {} has shape {}, the model needs {}", part.name,
            box.sizes().vec(), part.global_shape);
    for (size_t d = 0; d < part.offsets.size(); ++d) {
      box = box.narrow(static_cast<int64_t>(d), part.offsets[d], part.data.size(static_cast<int64_t>(d)));
    }
    part.data.copy_(box);
  }
  state.masters_changed();
}

StateDict local_state(ModelState& state, Optimizer* optimizer) {
  StateDict dict;
  for_each_shard(state, optimizer, [&](const std::string& kind, size_t unit, const at::Tensor& shard) {
    dict[fmt::format("{}/unit.{}", kind, unit)] = shard.clone();
  });
  return dict;
}

void load_local_state(ModelState& state, Optimizer* optimizer, const StateDict& dict) {
  for_each_shard(state, optimizer, [&](const std::string& kind, size_t unit, at::Tensor& shard) {
    const std::string name = fmt::format("{}/unit.{}", kind, unit);
    const at::Tensor& saved = find(dict, name);
    require(saved.sizes() == shard.sizes() && saved.scalar_type() == shard.scalar_type(),
            "state {} has {} elements of {}, this rank's shard {} of {}; local state fits the layout that it was taken "
            "on alone",
            name, saved.numel(), c10::toString(saved.scalar_type()), shard.numel(), c10::toString(shard.scalar_type()));
    shard.copy_(saved);
  });
  state.masters_changed();
}

}  // namespace tetra
