#pragma once
// How many ranks each mesh axis has.

#include <array>
#include <cstdint>
#include <string>

namespace tetra {

/// The mesh axes, outermost first. Ranks are row-major over them, so tp neighbours sit side by side.
enum class Axis : int { pp, dp_replicate, dp_shard, cp, sp, tp };
inline constexpr int kAxisCount = 6;
inline constexpr std::array<Axis, kAxisCount> kAxes = {Axis::pp, Axis::dp_replicate, Axis::dp_shard,
                                                       Axis::cp, Axis::sp,           Axis::tp};

/// "pp", "dp_replicate", ...
const char* axis_name(Axis axis);

/// The degree of every axis; 1 is an axis that is not used, and no special case anywhere.
struct Degrees {
  int64_t pp = 1;
  int64_t dp_replicate = 1;
  int64_t dp_shard = 1;
  int64_t cp = 1;
  int64_t sp = 1;
  int64_t tp = 1;
  int64_t ep = 1;  // lies inside fsdp = dp_shard x cp x sp and does not add to the world size

  int64_t of(Axis axis) const;
  /// Product of all degrees but ep.
  int64_t world_size() const;
};

/// Throws Error when a degree is below 1, ep does not divide dp_shard*cp*sp, or the product is not `world_size`;
/// the message names the fields and says which values would work. Run before any process group is made.
void check_degrees(const Degrees& degrees, int64_t world_size);

}  // namespace tetra
