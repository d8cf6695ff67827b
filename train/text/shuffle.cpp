#include "train/text/shuffle.h"

#include <array>
#include <bit>

#include "kernels/error.h"
#include "mesh/philox.h"

namespace tetra {
namespace {

constexpr uint32_t kRounds = 8;

/// A permutation of [0, 4^half_bits).
uint64_t permute(uint64_t value, int half_bits, const std::array<uint32_t, 2>& key) {
  const auto mask = static_cast<uint32_t>((uint64_t{1} << half_bits) - 1);
  auto left = static_cast<uint32_t>(value >> half_bits);
  auto right = static_cast<uint32_t>(value) & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t next = left ^ (philox4x32({right, round, 0, 0}, key)[0] & mask);
    left = right;
    right = next;
  }
  return uint64_t{left} << half_bits | right;
}

}  // namespace

uint64_t shuffled_index(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t index) {
  require(index < count, "place {} in an order of {} samples", index, count);
  const uint64_t bits = random_bits({seed, "data.shuffle", epoch}, 0);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
  const int half_bits = (std::bit_width(count - 1) + 1) / 2;
  do {
    index = permute(index, half_bits, key);
  } while (index >= count);
  return index;
}

}  // namespace tetra
