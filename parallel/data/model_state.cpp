#include "parallel/data/model_state.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>

#include "kernels/error.h"
#include "mesh/group.h"
#include "mesh/world.h"

namespace tetra {
namespace {

// Masters are not the values themselves: of another type, or on another device.
bool has_own_masters(const ParameterSet& parameters, const ShardingOptions& options) {
  return parameters.precision().has_masters() || (options.offload_state && options.state_device != parameters.device());
}

bool values_are_transient(const ParameterSet& parameters, const ShardGroups& groups, const ShardingOptions& options) {
  const bool sharded = options.zero_stage == 3 && groups.shard->size() > 1;
  return sharded || (!options.values_between_uses && has_own_masters(parameters, options));
}

void take_memory(const at::Tensor& x) {
  c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(x.numel()) * x.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

void give_memory_back(const at::Tensor& x) {
  c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, x.device()));
  storage->set_nbytes(0);
}

int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<int64_t>(x.storage().nbytes()) : 0;
}

}  // namespace

ShardGroups shard_groups(const World& world, int64_t zero_stage) {
  if (zero_stage == 0) {
    return {&world.self(), &world.group(Flat::grad), &world.group(Axis::tp)};
  }
  return {&world.group(Flat::fsdp), &world.group(Axis::dp_replicate), &world.group(Axis::tp)};
}

ModelState::ModelState(ParameterSet& parameters, const ShardGroups& groups, ShardingOptions options)
    : parameters_(parameters), groups_(groups), options_(std::move(options)) {
  require(options_.zero_stage >= 0 && options_.zero_stage <= 3,
          "parallelism.zero_stage {} is not known; use 0, 1, 2 or 3", options_.zero_stage);
  require(options_.prefetch_units >= 0, "parallelism.prefetch_units is {}; use 0 or more", options_.prefetch_units);
  transient_ = values_are_transient(parameters, groups, options_);
  for (Unit& unit : plan_units(parameters, options_.unit_size, groups.shard->size())) {
    UnitState& state = units_.emplace_back();
    state.unit = std::move(unit);
    state.segments = state.unit.segments(groups.shard->rank());
    make_values(state);
    make_shards(state);
  }
}

// Parameters get version counters of their own: a gather or an update writes beneath what autograd has saved.
void ModelState::make_values(UnitState& state) {
  const auto options = at::TensorOptions().dtype(parameters_.precision().compute).device(parameters_.device());
  state.values = at::empty({state.unit.padded(groups_.shard->size())}, options);
  for (size_t i = 0; i < state.unit.parameters.size(); ++i) {
    Parameter& parameter = *state.unit.parameters[i];
    const auto part = state.values.narrow(0, state.unit.offsets[i], parameter.slice.local_numel());
    parameter.value = part.view(parameter.slice.local_shape()).variable_data();
    parameter.value.set_requires_grad(true);
  }
  if (transient_) {
    give_memory_back(state.values);
  }
}

void ModelState::make_shards(UnitState& state) {
  const int64_t numel = state.unit.shard_numel;
  if (!transient_) {
    state.value_shard = state.values.narrow(0, groups_.shard->rank() * numel, numel);
  } else if (options_.values_between_uses || !has_own_masters(parameters_, options_)) {
    state.value_shard = at::zeros({numel}, state.values.options());
  }
  const auto master_options = at::TensorOptions().dtype(parameters_.precision().master).device(state_device());
  state.master_shard = has_own_masters(parameters_, options_) ? at::zeros({numel}, master_options) : state.value_shard;
}

void ModelState::set_master(UnitState& state, const Segment& segment, const at::Tensor& part) {
  require(part.dim() == 1 && part.numel() == segment.size(), "{}: {} values for a part of {}", segment.parameter->name,
          part.numel(), segment.size());
  state.master_shard.narrow(0, segment.offset, segment.size()).copy_(part);
}

void ModelState::masters_changed() {
  const at::NoGradGuard no_grad;
  for (UnitState& state : units_) {
    if (state.value_shard.defined() && !state.value_shard.is_same(state.master_shard)) {
      state.value_shard.copy_(state.master_shard);
    }
  }
  publish();
}

void ModelState::publish() {
  if (transient_ || groups_.shard->size() == 1) {
    return;
  }
  std::vector<Pending> pending;
  for (UnitState& state : units_) {
    pending.push_back(all_gather_async(state.values, state.value_shard, *groups_.shard, "sharding.publish"));
  }
  for (Pending& one : pending) {
    one.wait();
  }
}

bool ModelState::gathered(size_t unit) const {
  return units_[unit].unit.numel == 0 || units_[unit].values.storage().nbytes() > 0;
}

at::Tensor ModelState::shard_in_compute_type(const UnitState& state) const {
  return state.value_shard.defined() ? state.value_shard
                                     : state.master_shard.to(parameters_.device(), parameters_.precision().compute);
}

Pending ModelState::gather_async(size_t unit) {
  if (!transient_ || gathered(unit)) {
    return {};
  }
  UnitState& state = units_[unit];
  take_memory(state.values);
  return all_gather_async(state.values, shard_in_compute_type(state), *groups_.shard, "sharding.gather");
}

void ModelState::release_values(size_t unit) {
  if (transient_) {
    give_memory_back(units_[unit].values);
  }
}

int64_t ModelState::bytes() const {
  int64_t total = 0;
  for (const UnitState& state : units_) {
    total += bytes_of(state.values);
    total += transient_ ? bytes_of(state.value_shard) : 0;
    total += state.master_shard.is_alias_of(state.value_shard.defined() ? state.value_shard : state.values)
                 ? 0
                 : bytes_of(state.master_shard);
  }
  return total;
}

}  // namespace tetra
