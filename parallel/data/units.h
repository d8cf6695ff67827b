#pragma once
// Units: parameters that are sharded, gathered and reduced together, laid out one after another (FSDP's flat
// parameters: Zhao et al., VLDB 2023). Pure arithmetic: every rank can ask it about any other.

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/parameter.h"

namespace tetra {

/// A parameter's elements that one shard holds.
struct Segment {
  Parameter* parameter = nullptr;
  Range flat;          // of the parameter's local tensor, counted row-major
  int64_t offset = 0;  // in the shard
  int64_t size() const { return flat.size(); }
};

/// Parameters [first, first + count) of the set, one after another, cut into equal shards. The last shard is padded:
/// nothing needs to divide.
struct Unit {
  std::vector<Parameter*> parameters;
  std::vector<int64_t> offsets;  // of each parameter
  int64_t numel = 0;             // without padding
  int64_t shard_numel = 0;
  std::vector<int64_t> pieces;  // of the model that use it, ascending

  int64_t padded(int64_t shards) const { return shard_numel * shards; }
  std::vector<Segment> segments(int64_t shard) const;
};

/// Units in the model's order. `unit_size`: "layer" (each piece of the model by itself), "model" (all in one), or a
/// number: pieces join until they have at least that many parameters. Throws Error for anything else.
std::vector<Unit> plan_units(ParameterSet& parameters, const std::string& unit_size, int64_t shards);

}  // namespace tetra
