#include "train/batch_plan.h"

#include "kernels/error.h"

namespace tetra {

Range BatchPlan::micro_batch(int64_t index) const {
  const Range part = even_range(rows.size(), micro_batches, index);
  return {rows.begin + part.begin, rows.begin + part.end};
}

BatchPlan plan_batch(int64_t global_batch, int64_t micro_batch_size, int64_t data_ranks, int64_t data_rank) {
  require(
      global_batch >= data_ranks,
      "train.global_batch_size {} is fewer sequences than the {} data-parallel ranks; use {} or more, or fewer ranks",
      global_batch, data_ranks, data_ranks);
  require(micro_batch_size >= 1, "train.micro_batch_size {} is not positive", micro_batch_size);
  const int64_t largest_share = even_range(global_batch, data_ranks, 0).size();
  return {even_range(global_batch, data_ranks, data_rank), (largest_share + micro_batch_size - 1) / micro_batch_size};
}

}  // namespace tetra
