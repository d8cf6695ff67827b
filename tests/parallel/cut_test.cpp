#include "parallel/tensor/cut.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/tensor/attention.h"

namespace tetra {
namespace {

using Ranges = std::vector<Range>;

// How often each index of the cut dim is owned, over all ranks.
std::vector<int> times_owned(const TpCut& cut) {
  std::vector<int> times(cut.global_shape()[cut.dim()], 0);
  for (int64_t rank = 0; rank < cut.tp(); ++rank) {
    for (const Range& range : cut.owned_global(rank)) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        ++times[i];
      }
    }
  }
  return times;
}

TEST(TpCut, SharesAVocabularyThatTpDoesNotDivide) {
  const TpCut cut = TpCut::even({509, 8}, 0, 4);
  EXPECT_EQ(cut.slice(0).ranges, (Ranges{{0, 128}}));
  EXPECT_EQ(cut.slice(1).ranges, (Ranges{{128, 255}}));
  EXPECT_EQ(cut.slice(3).ranges, (Ranges{{382, 509}}));
  EXPECT_FALSE(cut.overlaps());
}

TEST(TpCut, CutsEachSectionApart) {
  // Two ranks, heads of 2 columns, q k v of 4 heads each: a rank gets two heads of each, not one and a half sections.
  const TpCut cut = TpCut::even({5, 24}, 1, 2, 2, 3);
  EXPECT_EQ(cut.slice(1).ranges, (Ranges{{4, 8}, {12, 16}, {20, 24}}));
  EXPECT_EQ(cut.slice(1).local_shape(), (std::vector<int64_t>{5, 12}));
  EXPECT_EQ(cut.owned_local(1), (Ranges{{0, 4}, {4, 8}, {8, 12}}));
}

TEST(TpCut, SharesKvHeadsWhereTheyAreFewerThanTp) {
  const TpCut cut = TpCut::kv_heads({2 * 3, 7}, 4, 8, 2);  // 2 kv heads of size 3, 4 ranks with 2 query heads each
  EXPECT_EQ(cut.slice(0).ranges, (Ranges{{0, 3}}));
  EXPECT_EQ(cut.slice(1).ranges, (Ranges{{0, 3}}));
  EXPECT_EQ(cut.slice(2).ranges, (Ranges{{3, 6}}));
  EXPECT_TRUE(cut.overlaps());
  EXPECT_FALSE(cut.is_replicated());
  EXPECT_EQ(cut.owned_local(1)[0].size(), 0);
}

TEST(TpCut, LetsOneRankHoldBothKvHeadsThatItsQueriesStraddle) {
  const TpCut cut = TpCut::kv_heads({2 * 4, 7}, 7, 14, 2);
  EXPECT_EQ(cut.slice(2).ranges, (Ranges{{0, 4}}));
  EXPECT_EQ(cut.slice(3).ranges, (Ranges{{0, 8}}));
  EXPECT_EQ(cut.slice(4).ranges, (Ranges{{4, 8}}));
  EXPECT_EQ(cut.owned_global(3), (Ranges{{4, 8}}));
  EXPECT_EQ(cut.owned_local(3), (Ranges{{4, 8}}));
  const LocalHeads heads = local_heads(14, 2, 7, 3);
  EXPECT_EQ(heads.queries, 2);
  EXPECT_EQ(heads.kv, 2);
  EXPECT_TRUE(heads.kv_of_query.empty());  // one query head each: equal groups
}

TEST(TpCut, OwnsEveryElementOnce) {
  for (const int64_t tp : {1, 2, 4, 7, 14}) {
    for (const int64_t kv : {1, 2, 7, 14}) {
      const TpCut cut = TpCut::kv_heads({kv * 3, 2}, tp, 14, kv);
      if (14 % tp == 0) {
        EXPECT_EQ(times_owned(cut), std::vector<int>(kv * 3, 1)) << "tp " << tp << " kv " << kv;
      }
    }
    EXPECT_EQ(times_owned(TpCut::replicated({5}, tp)), std::vector<int>(5, 1));
    EXPECT_EQ(times_owned(TpCut::even({42}, 0, tp, 1, 3)), std::vector<int>(42, 1));
  }
}

TEST(LocalHeads, MapQueriesThatShareUnevenly) {
  // 12 query heads, 4 kv heads (3 each), tp 3: rank 1 has queries 4..7, of kv heads 1, 1, 2, 2; even groups.
  EXPECT_TRUE(local_heads(12, 4, 3, 1).kv_of_query.empty());
  // rank 0 has queries 0..3 of kv heads 0, 0, 0, 1: not equal groups.
  EXPECT_EQ(local_heads(12, 4, 3, 0).kv_of_query, (std::vector<int64_t>{0, 0, 0, 1}));
}

}  // namespace
}  // namespace tetra
