#pragma once
// How a parameter is cut over tensor parallelism: the one place to ask, for gradients, norms, loading and export.

#include <cstdint>
#include <vector>

#include "mesh/slice.h"

namespace tetra {

/// For every tp rank the index ranges along `dim` that it holds. Three kinds arise: all ranks hold everything
/// (replicated), the ranks' ranges are disjoint (sharded), or they overlap in part (kv heads that several ranks need).
class TpCut {
 public:
  static TpCut replicated(std::vector<int64_t> shape, int64_t tp);
  /// Nearly equal parts of `dim`; `sections` > 1 cuts each of that many equal sections of the dim apart (GPT-2's fused
  /// q, k, v columns), in units of `unit` indices (a head).
  static TpCut even(std::vector<int64_t> shape, int64_t dim, int64_t tp, int64_t unit = 1, int64_t sections = 1);
  /// kv projections: each rank holds the kv heads that its query heads use, rows of head_dim along dim 0. Heads are
  /// shared where kv_heads < tp.
  static TpCut kv_heads(std::vector<int64_t> shape, int64_t tp, int64_t heads, int64_t kv_heads);

  const std::vector<int64_t>& global_shape() const { return shape_; }
  int64_t dim() const { return dim_; }
  int64_t tp() const { return static_cast<int64_t>(ranges_.size()); }

  Slice slice(int64_t tp_rank) const;
  bool is_replicated() const;
  /// True where some index belongs to more than one rank.
  bool overlaps() const;

  /// Where, in this rank's LOCAL tensor along dim(), the indices lie that no lower rank holds: every index of the
  /// global tensor is owned by exactly one rank. Norms and export count owned parts alone.
  std::vector<Range> owned_local(int64_t tp_rank) const;
  /// The same indices in the global tensor.
  std::vector<Range> owned_global(int64_t tp_rank) const;

 private:
  TpCut(std::vector<int64_t> shape, int64_t dim, std::vector<std::vector<Range>> ranges);

  std::vector<int64_t> shape_;
  int64_t dim_;
  std::vector<std::vector<Range>> ranges_;  // of each tp rank, ascending
};

/// The kv heads [begin, end) that query heads `queries` of `heads` use, when `kv_heads` of them are shared evenly.
Range kv_heads_of(Range queries, int64_t heads, int64_t kv_heads);

}  // namespace tetra
