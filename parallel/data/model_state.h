#pragma once
// Where a rank's parameters, masters and gradients live, cut as the ZeRO stage says (Rajbhandari et al., "ZeRO", SC
// 2020; Zhao et al., "PyTorch FSDP", VLDB 2023).

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/collectives.h"
#include "parallel/data/units.h"

namespace tetra {

class Group;
class World;

struct ShardingOptions {
  int64_t zero_stage = 0;             // 0 nothing is cut, 1 masters and optimizer state, 2 gradients too, 3 values too
  std::string unit_size = "layer";    // see plan_units; results do not depend on it
  bool reshard_after_forward = true;  // stage 3: false keeps a unit's values from its forward to its backward
  int64_t prefetch_units = 1;         // stage 3: units whose values are fetched ahead of their use
  bool reduce_each_micro_batch = true;  // stages 2 and 3: false keeps whole gradients and reduces once a window
  at::ScalarType reduce_type = at::ScalarType::Undefined;  // of gradients on the wire; undefined: the master type
  bool values_between_uses = true;     // false: just masters are kept, values are cast from them for each use
  at::Device state_device = at::kCPU;  // of masters and optimizer state, when offload_state
  bool offload_state = false;          // masters and optimizer state live on state_device, values on the model's own
};

/// The groups that one rank's state is cut and repeated over. shard x replicate is where gradients are summed.
struct ShardGroups {
  const Group* shard;      // stage 0: this rank alone
  const Group* replicate;  // ranks with the same shard
  const Group* tp;
};
ShardGroups shard_groups(const World& world, int64_t zero_stage);

/// One unit's tensors on this rank; flat, and undefined or without memory where the rank keeps nothing.
struct UnitState {
  Unit unit;
  std::vector<Segment> segments;  // of this rank's shard
  at::Tensor values;              // [padded], compute type: what Parameter::value views
  at::Tensor value_shard;         // [shard], compute type; part of `values` where those stay
  at::Tensor master_shard;        // [shard], master type; the same as value_shard where the types are equal
  at::Tensor grad_shard;          // [shard], master type: the sum over the window and all ranks, from GradientReducer
};

class ModelState {
 public:
  /// Gives the parameters their memory. Nothing is communicated; values are what memory holds until fill or publish.
  ModelState(ParameterSet& parameters, const ShardGroups& groups, ShardingOptions options);

  /// Sets this rank's masters, and the values of all ranks' parameters with them: `part(parameter, flat)` returns
  /// elements `flat` of its local tensor as a flat CPU tensor in the master type. Collective over the shard group.
  template <typename Part>
  void fill(Part&& part) {
    for (UnitState& state : units_) {
      for (const Segment& segment : state.segments) {
        set_master(state, segment, part(*segment.parameter, segment.flat));
      }
    }
    masters_changed();
  }

  /// After masters were written from outside (a checkpoint): casts value shards from them, then publish().
  void masters_changed();
  /// After value shards changed: brings values that stay in memory up to date. Collective over the shard group.
  void publish();

  /// True when values have no memory between uses.
  bool transient() const { return transient_; }
  bool gathered(size_t unit) const;
  /// Fetches a unit's values from all shards; they may be read after wait(). Collective over the shard group.
  Pending gather_async(size_t unit);
  void gather(size_t unit) { gather_async(unit).wait(); }
  /// Gives the memory of values back, where they are transient.
  void release_values(size_t unit);

  std::vector<UnitState>& units() { return units_; }
  const std::vector<UnitState>& units() const { return units_; }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  const ShardGroups& groups() const { return groups_; }
  const ShardingOptions& options() const { return options_; }
  at::Device state_device() const { return options_.offload_state ? options_.state_device : parameters_.device(); }

  /// Bytes of values, value shards and masters that this rank keeps between steps, padding counted.
  int64_t bytes() const;

 private:
  void make_values(UnitState& state);
  void make_shards(UnitState& state);
  void set_master(UnitState& state, const Segment& segment, const at::Tensor& part);
  at::Tensor shard_in_compute_type(const UnitState& state) const;

  ParameterSet& parameters_;
  ShardGroups groups_;
  ShardingOptions options_;
  bool transient_;
  std::vector<UnitState> units_;
};

}  // namespace tetra
