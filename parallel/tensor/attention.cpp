#include "parallel/tensor/attention.h"

namespace tetra {

LocalHeads local_heads(int64_t heads, int64_t kv_heads, int64_t tp, int64_t tp_rank) {
  const Range queries = even_range(heads, tp, tp_rank);
  const Range kv = kv_heads_of(queries, heads, kv_heads);
  LocalHeads local{queries.size(), kv.size(), {}};
  bool even = local.queries % local.kv == 0;
  std::vector<int64_t> kv_of_query;
  for (int64_t i = 0; i < local.queries; ++i) {
    kv_of_query.push_back((queries.begin + i) / (heads / kv_heads) - kv.begin);
    even = even && kv_of_query.back() == i / (local.queries / local.kv);
  }
  if (!even) {
    local.kv_of_query = kv_of_query;
  }
  return local;
}

}  // namespace tetra
