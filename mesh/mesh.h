#pragma once
// Rank and coordinate arithmetic. Knows nothing of processes: every rank can ask it about any other.

#include <array>
#include <string>
#include <vector>

#include "mesh/degrees.h"

namespace tetra {

/// The groups that the axes flatten into (beside one group per axis).
enum class Flat : int {
  world,        // every rank
  dp,           // dp_replicate x dp_shard: ranks that read different data
  fsdp,         // dp_shard x cp x sp: what parameters are sharded over
  grad,         // dp_replicate x fsdp: what gradients are summed over
  ep,           // innermost part of fsdp that experts are spread over
  expert_grad,  // the rest of grad: what an expert's gradients are summed over
};
inline constexpr int kFlatCount = 6;
const char* flat_name(Flat flat);

using Coordinates = std::array<int, kAxisCount>;

class Mesh {
 public:
  explicit Mesh(const Degrees& degrees);

  const Degrees& degrees() const { return degrees_; }
  int world_size() const { return world_size_; }

  Coordinates coordinates(int rank) const;
  int coordinate(int rank, Axis axis) const { return coordinates(rank)[static_cast<int>(axis)]; }
  int rank_at(const Coordinates& coordinates) const;

  /// The ranks of `rank`'s group along one axis, or of a flattened group, in ascending order.
  std::vector<int> members(int rank, Axis axis) const;
  std::vector<int> members(int rank, Flat flat) const;

 private:
  Degrees degrees_;
  int world_size_;
};

}  // namespace tetra
