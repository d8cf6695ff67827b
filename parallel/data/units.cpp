#include "parallel/data/units.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "kernels/error.h"

namespace tetra {
namespace {

int64_t smallest_unit(const std::string& unit_size) {
  if (unit_size == "layer") {
    return 1;
  }
  if (unit_size == "model") {
    return std::numeric_limits<int64_t>::max();
  }
  int64_t numel = 0;
  const char* end = unit_size.data() + unit_size.size();
  const auto parsed = std::from_chars(unit_size.data(), end, numel);
  require(parsed.ec == std::errc() && parsed.ptr == end && numel > 0,
          "parallelism.unit_size {} is not known; use layer, model, or the least number of parameters of a unit",
          unit_size);
  return numel;
}

void add_parameter(Unit& unit, Parameter& parameter) {
  unit.parameters.push_back(&parameter);
  unit.offsets.push_back(unit.numel);
  unit.numel += parameter.slice.local_numel();
}

void finish(Unit& unit, int64_t shards) {
  unit.shard_numel = (unit.numel + shards - 1) / shards;
  std::set<int64_t> pieces;
  for (const Parameter* parameter : unit.parameters) {
    pieces.insert(parameter->pieces.begin(), parameter->pieces.end());
  }
  unit.pieces.assign(pieces.begin(), pieces.end());
}

}  // namespace

std::vector<Segment> Unit::segments(int64_t shard) const {
  const Range mine{shard * shard_numel, (shard + 1) * shard_numel};
  std::vector<Segment> result;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t begin = offsets[i];
    const Range part = intersect(mine, {begin, begin + parameters[i]->slice.local_numel()});
    if (part.size() > 0) {
      result.push_back({parameters[i], {part.begin - begin, part.end - begin}, part.begin - mine.begin});
    }
  }
  return result;
}

std::vector<Unit> plan_units(ParameterSet& parameters, const std::string& unit_size, int64_t shards) {
  const int64_t smallest = smallest_unit(unit_size);
  std::vector<Unit> units;
  int64_t piece = -1;
  for (Parameter& parameter : parameters.all()) {
    const bool new_piece = parameter.pieces.front() != piece;
    piece = parameter.pieces.front();
    if (units.empty() || (new_piece && units.back().numel >= smallest)) {
      units.emplace_back();
    }
    add_parameter(units.back(), parameter);
  }
  for (Unit& unit : units) {
    finish(unit, shards);
  }
  return units;
}

}  // namespace tetra
