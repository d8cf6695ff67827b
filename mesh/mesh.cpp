#include "mesh/mesh.h"

#include <limits>

#include "kernels/error.h"

namespace tetra {
namespace {

// Place in fsdp = dp_shard x cp x sp, row-major.
int64_t fsdp_index(const Coordinates& c, const Degrees& degrees) {
  const int64_t dp_shard = c[static_cast<int>(Axis::dp_shard)];
  const int64_t cp = c[static_cast<int>(Axis::cp)];
  const int64_t sp = c[static_cast<int>(Axis::sp)];
  return (dp_shard * degrees.cp + cp) * degrees.sp + sp;
}

// The axes along which members of a flattened group differ.
bool spans(Flat flat, Axis axis) {
  switch (flat) {
    case Flat::world:
      return true;
    case Flat::dp:
      return axis == Axis::dp_replicate || axis == Axis::dp_shard;
    case Flat::fsdp:
    case Flat::ep:
      return axis == Axis::dp_shard || axis == Axis::cp || axis == Axis::sp;
    case Flat::grad:
    case Flat::expert_grad:
      return axis == Axis::dp_replicate || axis == Axis::dp_shard || axis == Axis::cp || axis == Axis::sp;
  }
  fail("flattened group {} does not exist", static_cast<int>(flat));
}

bool same_group(const Coordinates& a, const Coordinates& b, Flat flat, const Degrees& degrees) {
  for (Axis axis : kAxes) {
    const auto i = static_cast<size_t>(axis);
    if (a[i] != b[i] && !spans(flat, axis)) {
      return false;
    }
  }
  if (flat == Flat::ep) {
    return fsdp_index(a, degrees) / degrees.ep == fsdp_index(b, degrees) / degrees.ep;
  }
  if (flat == Flat::expert_grad) {
    return fsdp_index(a, degrees) % degrees.ep == fsdp_index(b, degrees) % degrees.ep;
  }
  return true;
}

}  // namespace

const char* flat_name(Flat flat) {
  switch (flat) {
    case Flat::world:
      return "world";
    case Flat::dp:
      return "dp";
    case Flat::fsdp:
      return "fsdp";
    case Flat::grad:
      return "grad";
    case Flat::ep:
      return "ep";
    case Flat::expert_grad:
      return "expert_grad";
  }
  fail("flattened group {} does not exist", static_cast<int>(flat));
}

Mesh::Mesh(const Degrees& degrees) : degrees_(degrees), world_size_(0) {
  const int64_t size = degrees.world_size();
  check_degrees(degrees, size);
  require(size <= std::numeric_limits<int>::max(), "a mesh of {} ranks is too large", size);
  world_size_ = static_cast<int>(size);
}

Coordinates Mesh::coordinates(int rank) const {
  require(rank >= 0 && rank < world_size_, "rank {} is not in a mesh of {} ranks", rank, world_size_);
  Coordinates result{};
  for (int i = kAxisCount - 1; i >= 0; --i) {
    const auto degree = static_cast<int>(degrees_.of(kAxes[i]));
    result[i] = rank % degree;
    rank /= degree;
  }
  return result;
}

int Mesh::rank_at(const Coordinates& coordinates) const {
  int rank = 0;
  for (int i = 0; i < kAxisCount; ++i) {
    const auto degree = static_cast<int>(degrees_.of(kAxes[i]));
    require(coordinates[i] >= 0 && coordinates[i] < degree, "coordinate {} of axis {} is not in [0, {})",
            coordinates[i], axis_name(kAxes[i]), degree);
    rank = rank * degree + coordinates[i];
  }
  return rank;
}

std::vector<int> Mesh::members(int rank, Axis axis) const {
  Coordinates c = coordinates(rank);
  std::vector<int> result;
  for (int i = 0; i < degrees_.of(axis); ++i) {
    c[static_cast<size_t>(axis)] = i;
    result.push_back(rank_at(c));
  }
  return result;
}

std::vector<int> Mesh::members(int rank, Flat flat) const {
  const Coordinates own = coordinates(rank);
  std::vector<int> result;
  for (int other = 0; other < world_size_; ++other) {
    if (same_group(own, coordinates(other), flat, degrees_)) {
      result.push_back(other);
    }
  }
  return result;
}

}  // namespace tetra
