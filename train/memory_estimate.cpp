#include "train/memory_estimate.h"

#include <algorithm>
#include <vector>

#include "parallel/data/units.h"
#include "train/options.h"

// T tokens of a micro-batch, H hidden, F feed-forward, V vocabulary, A heads, G kv heads, D head size; all but T and H
// are one tp rank's part.

namespace tetra {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A rank's sizes.
struct Sizes {
  int64_t tokens, stream_tokens;  // a stream holds a part under sequence parallelism
  int64_t hidden, feed_forward, vocab, query_width, kv_width, heads, layers;
  int64_t item;    // bytes of the compute type
  int64_t master;  // bytes of the master type
  RecomputePolicy recompute;
  bool gated;
};

Sizes sizes_of(const Config& config, const CausalLM& model) {
  const ModelConfig& c = model.config();
  const Degrees& degrees = config.parallelism.degrees;
  const int64_t data_ranks = degrees.dp_replicate * degrees.dp_shard;
  const int64_t rows = std::min(config.train.micro_batch_size, ceil_div(config.train.global_batch_size, data_ranks));
  const int64_t tp = degrees.tp;
  Sizes s{};
  s.tokens = rows * config.data.seq_len;
  s.stream_tokens = config.parallelism.sequence_parallel ? ceil_div(s.tokens, tp) : s.tokens;
  s.hidden = c.hidden_size;
  s.feed_forward = ceil_div(c.intermediate_size, tp);
  s.vocab = ceil_div(c.vocab_size, tp);
  s.heads = ceil_div(c.num_heads, tp);
  s.query_width = s.heads * c.head_dim;
  s.kv_width = ceil_div(c.num_kv_heads, std::min(tp, c.num_kv_heads)) * c.head_dim;
  s.layers = c.num_layers;
  s.item = static_cast<int64_t>(c10::elementSize(model.parameters().precision().compute));
  s.master = static_cast<int64_t>(c10::elementSize(model.parameters().precision().master));
  s.recompute = recompute_policy(config);
  s.gated = c.model_type != "gpt2";
  return s;
}

int64_t layer_activations(const Sizes& s, Recompute recompute) {
  const int64_t inputs = 2 * s.stream_tokens * s.hidden;  // of the two norms
  const int64_t normed = 2 * s.tokens * s.hidden;         // of the column-parallel layers
  const int64_t attention = s.tokens * (s.query_width + 2 * s.kv_width);
  const int64_t attended = s.tokens * s.query_width;
  const int64_t before = s.tokens * s.feed_forward * (s.gated ? 2 : 1);
  const int64_t after = s.tokens * s.feed_forward;
  const int64_t log_sum_exp = s.tokens * s.heads * std::max<int64_t>(s.item, 4);
  switch (recompute) {
    case Recompute::full:
      return s.item * s.stream_tokens * s.hidden;
    case Recompute::selective: {
      const bool whole_streams = s.stream_tokens == s.tokens;  // else norms' outputs are gathered, and kept
      return s.item * (inputs + (whole_streams ? 0 : normed) + attention + before) + log_sum_exp;
    }
    default:
      return s.item * (inputs + normed + attention + attended + before + after) + log_sum_exp;
  }
}

// Gradients of one layer's activations while backward is in its feed-forward, and one weight's gradient.
int64_t layer_backward(const Sizes& s) {
  const int64_t weight = s.hidden * s.feed_forward;
  return s.item * (2 * s.tokens * s.hidden + 3 * s.tokens * s.feed_forward + weight);
}

int64_t optimizer_slots(const OptimizerConfig& config) {
  return config.type == "adamw" ? 2 : config.type == "lion" || config.momentum != 0 ? 1 : 0;
}

// The units of a rank, and what is whole of them when.
class Units {
 public:
  Units(const Config& config, CausalLM& model, const Sizes& s) : s_(s), options_(sharding_options(config)) {
    const Degrees& d = config.parallelism.degrees;
    shards_ = options_.zero_stage == 0 ? 1 : d.dp_shard * d.cp * d.sp;
    units_ = plan_units(model.parameters(), options_.unit_size, shards_);
    has_masters_ = model.parameters().precision().has_masters();
    transient_ = (options_.zero_stage == 3 && shards_ > 1) || (!options_.values_between_uses && has_masters_);
    whole_gradients_ = shards_ == 1 || options_.zero_stage < 2 || !options_.reduce_each_micro_batch;
  }

  int64_t shard_numel() const {
    int64_t sum = 0;
    for (const Unit& unit : units_) {
      sum += unit.shard_numel;
    }
    return sum;
  }

  void add_state(MemoryEstimate& m, int64_t slots) const {
    const bool keeps_shard = options_.values_between_uses || !has_masters_;
    m.values = s_.item * (transient_ ? (keeps_shard ? shard_numel() : 0) : shard_numel() * shards_);
    m.masters = has_masters_ ? s_.master * shard_numel() : 0;
    m.optimizer = slots * s_.master * shard_numel();
    m.gradients = s_.master * shard_numel() * (whole_gradients_ ? shards_ : 1);
  }

  /// The busiest moment, above state and the activations of all layers.
  int64_t working() const {
    const auto count = static_cast<int64_t>(units_.size());
    const int64_t freed_by_layer = layer_activations(s_, s_.recompute.of_layer(0));
    const int64_t again =
        s_.recompute.what == Recompute::none ? 0 : layer_activations(s_, Recompute::none) - freed_by_layer;
    const int64_t logits = s_.item * s_.tokens * s_.vocab;
    const int64_t ends = s_.item * 3 * s_.tokens * s_.hidden;
    const bool tied = units_.front().pieces.size() > 1 && count > 1;
    const int64_t tied_gradient = tied ? s_.item * units_.front().numel : 0;
    int64_t shards_left = whole_gradients_ ? 0 : s_.master * shard_numel();  // counted as state, not there yet
    int64_t most = logits + ends + s_.item * head_weight() + whole_values(count - 1, tied) + whole_gradient(count - 1) -
                   shards_left;
    for (int64_t u = count - 2; u >= 1; --u) {
      shards_left -= whole_gradients_ ? 0 : s_.master * units_[static_cast<size_t>(u + 1)].shard_numel;
      const int64_t layers_freed = (count - 2 - u) * freed_by_layer * s_.layers / std::max<int64_t>(count - 2, 1);
      most = std::max(most, whole_values(u, tied) + whole_gradient(u) + whole_gradient(u + 1) + layer_backward(s_) +
                                again + tied_gradient - layers_freed - shards_left);
    }
    const int64_t table = s_.item * units_.front().numel;
    const int64_t end = table + tied_gradient + (tied ? whole_values(0, tied) : 0) + whole_gradient(0) +
                        (count > 1 ? whole_gradient(1) : 0) - s_.layers * freed_by_layer;
    return std::max(most, end);
  }

 private:
  // Values of unit `u`, of those fetched ahead of it, and of a tied one.
  int64_t whole_values(int64_t u, bool tied) const {
    if (!transient_) {
      return 0;
    }
    int64_t sum = tied ? padded(0) : 0;
    for (int64_t i = u; i >= 0 && i >= u - options_.prefetch_units; --i) {
      sum += i == 0 ? 0 : padded(i);  // an embedding's backward reads no table
    }
    return s_.item * (sum + (u == 0 && !tied ? padded(0) : 0));
  }
  int64_t whole_gradient(int64_t u) const { return whole_gradients_ ? 0 : s_.master * padded(u); }
  int64_t padded(int64_t u) const { return units_[static_cast<size_t>(u)].padded(shards_); }
  int64_t head_weight() const { return s_.vocab * s_.hidden; }

  const Sizes& s_;
  ShardingOptions options_;
  int64_t shards_ = 1;
  bool has_masters_ = false;
  bool transient_ = false;
  bool whole_gradients_ = true;
  std::vector<Unit> units_;
};

}  // namespace

MemoryEstimate estimate_memory(const Config& config, CausalLM& model) {
  const Sizes s = sizes_of(config, model);
  const Units units(config, model, s);
  MemoryEstimate m;
  units.add_state(m, optimizer_slots(config.train.optimizer));
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    m.activations += layer_activations(s, s.recompute.of_layer(layer));
  }
  m.working = units.working();
  return m;
}

}  // namespace tetra
