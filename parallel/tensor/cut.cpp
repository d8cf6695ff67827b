#include "parallel/tensor/cut.h"

#include <algorithm>
#include <utility>

#include "kernels/error.h"

namespace tetra {

TpCut::TpCut(std::vector<int64_t> shape, int64_t dim, std::vector<std::vector<Range>> ranges)
    : shape_(std::move(shape)), dim_(dim), ranges_(std::move(ranges)) {}

TpCut TpCut::replicated(std::vector<int64_t> shape, int64_t tp) {
  const int64_t size = shape.empty() ? 1 : shape[0];
  return {std::move(shape), 0, std::vector<std::vector<Range>>(tp, {{0, size}})};
}

TpCut TpCut::even(std::vector<int64_t> shape, int64_t dim, int64_t tp, int64_t unit, int64_t sections) {
  const int64_t section = shape.at(dim) / sections;
  require(section * sections == shape[dim] && section % unit == 0,
          "dim {} of size {} is not {} sections of whole units of {}", dim, shape[dim], sections, unit);
  std::vector<std::vector<Range>> ranges(tp);
  for (int64_t rank = 0; rank < tp; ++rank) {
    const Range part = even_range(section / unit, tp, rank);
    for (int64_t s = 0; s < sections; ++s) {
      ranges[rank].push_back({s * section + part.begin * unit, s * section + part.end * unit});
    }
  }
  return {std::move(shape), dim, std::move(ranges)};
}

Range kv_heads_of(Range queries, int64_t heads, int64_t kv_heads) {
  const int64_t per_kv = heads / kv_heads;
  return {queries.begin / per_kv, (queries.end + per_kv - 1) / per_kv};
}

TpCut TpCut::kv_heads(std::vector<int64_t> shape, int64_t tp, int64_t heads, int64_t kv_heads) {
  const int64_t head_dim = shape.at(0) / kv_heads;
  std::vector<std::vector<Range>> ranges(tp);
  for (int64_t rank = 0; rank < tp; ++rank) {
    const Range kv = kv_heads_of(even_range(heads, tp, rank), heads, kv_heads);
    ranges[rank] = {{kv.begin * head_dim, kv.end * head_dim}};
  }
  return {std::move(shape), 0, std::move(ranges)};
}

Slice TpCut::slice(int64_t tp_rank) const {
  return {shape_, dim_, ranges_.at(tp_rank)};
}

bool TpCut::is_replicated() const {
  return tp() > 1 && slice(0).is_whole() && slice(tp() - 1).is_whole();
}

bool TpCut::overlaps() const {
  int64_t held = 0;
  for (const auto& ranges : ranges_) {
    for (const Range& range : ranges) {
      held += range.size();
    }
  }
  return held > (shape_.empty() ? 1 : shape_[dim_]);
}

std::vector<Range> TpCut::owned_global(int64_t tp_rank) const {
  std::vector<Range> owned;
  for (size_t i = 0; i < ranges_[tp_rank].size(); ++i) {
    Range range = ranges_[tp_rank][i];
    for (int64_t lower = 0; lower < tp_rank; ++lower) {  // ranges ascend with the rank, so lower ranks cover a prefix
      const Range& taken = ranges_[lower][i];
      if (taken.begin <= range.begin) {
        range.begin = std::clamp(taken.end, range.begin, range.end);
      }
    }
    owned.push_back(range);
  }
  return owned;
}

std::vector<Range> TpCut::owned_local(int64_t tp_rank) const {
  std::vector<Range> owned = owned_global(tp_rank);
  int64_t offset = 0;
  for (size_t i = 0; i < owned.size(); ++i) {
    const Range held = ranges_[tp_rank][i];
    const int64_t shift = offset - held.begin;
    owned[i] = {owned[i].begin + shift, owned[i].end + shift};
    offset += held.size();
  }
  return owned;
}

}  // namespace tetra
