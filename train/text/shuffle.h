#pragma once
// The order of samples in an epoch, computed one place at a time.

#include <cstdint>

namespace tetra {

/// Where sample order puts place `index` of `count` in `epoch`: a permutation of [0, count) that depends on (seed,
/// epoch, count) alone, so that every rank of every layout agrees without talking, in constant memory. A Feistel
/// network over the next power of four, keyed by Philox, walked until it lands below `count` (Black and Rogaway,
/// "Ciphers with arbitrary finite domains", 2002). Throws Error where index is not below count.
uint64_t shuffled_index(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t index);

}  // namespace tetra
