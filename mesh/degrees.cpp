#include "mesh/degrees.h"

#include <limits>
#include <utility>
#include <vector>

#include "kernels/error.h"

namespace tetra {
namespace {

constexpr int64_t kTooLarge = std::numeric_limits<int64_t>::max();

int64_t multiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kTooLarge : product;
}

std::string describe(const Degrees& degrees) {
  std::vector<std::string> factors;
  for (Axis axis : kAxes) {
    factors.push_back(fmt::format("{}_size {}", axis_name(axis), degrees.of(axis)));
  }
  return fmt::format("{}", fmt::join(factors, " x "));
}

std::string divisors(int64_t number) {
  std::vector<int64_t> small;
  std::vector<int64_t> large;
  for (int64_t d = 1; d <= number / d; ++d) {
    if (number % d == 0) {
      small.push_back(d);
      if (d != number / d) {
        large.insert(large.begin(), number / d);
      }
    }
  }
  small.insert(small.end(), large.begin(), large.end());
  if (small.size() == 1) {
    return "1";
  }
  const int64_t last = small.back();
  small.pop_back();
  return fmt::format("{} or {}", fmt::join(small, ", "), last);
}

// Single fields that could be changed so that the product fits: "dp_replicate_size 4 or tp_size 2".
std::string single_changes(const Degrees& degrees, int64_t world_size) {
  std::vector<std::string> changes;
  const int64_t product = degrees.world_size();
  for (Axis axis : kAxes) {
    const int64_t others = product / degrees.of(axis);
    if (world_size % others == 0) {
      changes.push_back(fmt::format("{}_size {}", axis_name(axis), world_size / others));
    }
  }
  return fmt::format("{}", fmt::join(changes, " or "));
}

void check_product(const Degrees& degrees, int64_t world_size) {
  const int64_t product = degrees.world_size();
  if (product == world_size) {
    return;
  }
  require(product != kTooLarge, "{} is too large for {} ranks", describe(degrees), world_size);
  const std::string changes = single_changes(degrees, world_size);
  fail("{} = {}, but there are {} ranks; use {} ranks{}{}", describe(degrees), product, world_size, product,
       changes.empty() ? "" : ", or change one field: ", changes);
}

}  // namespace

const char* axis_name(Axis axis) {
  switch (axis) {
    case Axis::pp:
      return "pp";
    case Axis::dp_replicate:
      return "dp_replicate";
    case Axis::dp_shard:
      return "dp_shard";
    case Axis::cp:
      return "cp";
    case Axis::sp:
      return "sp";
    case Axis::tp:
      return "tp";
  }
  fail("axis {} does not exist", static_cast<int>(axis));
}

int64_t Degrees::of(Axis axis) const {
  switch (axis) {
    case Axis::pp:
      return pp;
    case Axis::dp_replicate:
      return dp_replicate;
    case Axis::dp_shard:
      return dp_shard;
    case Axis::cp:
      return cp;
    case Axis::sp:
      return sp;
    case Axis::tp:
      return tp;
  }
  fail("axis {} does not exist", static_cast<int>(axis));
}

int64_t Degrees::world_size() const {
  int64_t product = 1;
  for (Axis axis : kAxes) {
    product = multiply(product, of(axis));
  }
  return product;
}

void check_degrees(const Degrees& degrees, int64_t world_size) {
  for (Axis axis : kAxes) {
    require(degrees.of(axis) >= 1, "{}_size is {}; it must be at least 1", axis_name(axis), degrees.of(axis));
  }
  require(degrees.ep >= 1, "ep_size is {}; it must be at least 1", degrees.ep);
  require(world_size >= 1, "world size is {}; it must be at least 1", world_size);
  check_product(degrees, world_size);
  const int64_t fsdp = degrees.dp_shard * degrees.cp * degrees.sp;
  require(fsdp % degrees.ep == 0,
          "ep_size {} does not divide dp_shard_size {} x cp_size {} x sp_size {} = {}; use ep_size {}", degrees.ep,
          degrees.dp_shard, degrees.cp, degrees.sp, fsdp, divisors(fsdp));
}

}  // namespace tetra
