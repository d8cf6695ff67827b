#pragma once
// Which heads a tp rank computes.

#include <cstdint>
#include <vector>

#include "parallel/tensor/cut.h"

namespace tetra {

/// A rank's query heads and the kv heads they use. Where kv heads are fewer than tp, ranks share them; where a rank's
/// query heads straddle kv heads unevenly (14 heads, 2 kv heads, tp 7), `kv_of_query` says which local kv head each
/// local query head uses.
struct LocalHeads {
  int64_t queries = 0;               // number of local query heads
  int64_t kv = 0;                    // number of local kv heads
  std::vector<int64_t> kv_of_query;  // of each local query head; empty where consecutive equal groups do
};
LocalHeads local_heads(int64_t heads, int64_t kv_heads, int64_t tp, int64_t tp_rank);

}  // namespace tetra
