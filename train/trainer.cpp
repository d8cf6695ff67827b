#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "kernels/cross_entropy.h"
#include "kernels/error.h"
#include "mesh/collectives.h"
#include "models/weights.h"
#include "parallel/optim/grad_norm.h"
#include "train/device.h"
#include "train/options.h"

namespace tetra {
namespace {

template <typename Number>
Number sum_over(Number value, const Group& group, at::Device device, const char* site) {
  const auto type = std::is_same_v<Number, double> ? at::kDouble : at::kLong;
  auto sum = at::scalar_tensor(value, at::TensorOptions().dtype(type).device(device));
  all_reduce(sum, group, site);
  return sum.template item<Number>();
}

void check_trainable(const ModelConfig& model, int64_t seq_len) {
  const double dropout = std::max({model.embedding_dropout, model.residual_dropout, model.attention_dropout});
  require(dropout == 0, "the model's config asks for dropout {}, which is not there yet; set {} to 0 in it", dropout,
          model.model_type == "gpt2" ? "embd_pdrop, resid_pdrop and attn_pdrop" : "attention_dropout");
  check_sequence_length(model, seq_len);
}

void check_clipping(const TrainConfig& train) {
  require(
      !train.clip_grad_norm || !train.clip_grad_value,
      "train.clip_grad_norm {} and train.clip_grad_value {}: a gradient is clipped by one of them; set the other to "
      "null",
      train.clip_grad_norm.value_or(0), train.clip_grad_value.value_or(0));
}

}  // namespace

struct Trainer::Window {
  at::Tensor ids;       // [rows, S]
  at::Tensor labels;    // [rows, S], shifted
  int64_t counted = 0;  // over the whole global batch
};

ModelConfig resolve_model_config(const ModelSource& source, const std::string& origin) {
  return source.from.empty() ? parse_model_config(source.config_json, origin) : read_model_config(source.from);
}

Trainer::Trainer(const Config& config, World& world)
    : config_(config), world_(world), tp_{world.group(Axis::tp), config.parallelism.sequence_parallel} {
  const at::Device device = prepare_device(config.device, world.local_rank());
  const ModelConfig model = resolve_model_config(config.model);
  check_model_layout(model, world.mesh().degrees());
  check_trainable(model, config.data.seq_len);
  check_clipping(config.train);
  const Group& dp = world.group(Flat::dp);
  plan_ = plan_batch(config.train.global_batch_size, config.train.micro_batch_size, dp.size(), dp.rank());
  samples_ = open_samples(config, model.vocab_size);

  model_ = make_causal_lm(model, parse_precision(config.train.precision), tp_, device);
  model_->set_recompute(recompute_policy(config));
  const ShardingOptions sharding = sharding_options(config);
  state_ = std::make_unique<ModelState>(model_->parameters(), shard_groups(world, sharding.zero_stage), sharding);
  if (config.model.from.empty()) {
    draw_weights(*state_, config.seed);
  } else {
    load_weights(*model_, *state_, WeightReader::open(config.model.from));
  }
  gatherer_ = std::make_unique<UnitGatherer>(*state_);
  model_->set_hooks(gatherer_.get());
  gradients_ = std::make_unique<GradientReducer>(*state_);
  gradients_->on_unit_done([this](size_t unit) { gatherer_->unit_done(unit); });
  optimizer_ = make_optimizer(*state_, optimizer_options(config.train.optimizer));
  schedule_ = learning_rate_schedule(config.train);
  if (model_->parameters().precision().compute == at::kHalf) {
    loss_scale_.emplace(loss_scale_options(config.train.loss_scale));
  }
}

StepResult Trainer::step() {
  const Window window = read_window();
  StepResult result{.step = steps_done_ + 1, .tokens = window.counted};
  result.lr = learning_rate(schedule_, result.step - skipped());
  if (loss_scale_) {
    result.loss_scale = loss_scale_->scale();
  }
  result.loss = backward(window);
  if (before_update_) {
    before_update_();
  }
  update(result);
  gradients_->release();
  ++steps_done_;
  return result;
}

Trainer::Window Trainer::read_window() const {
  const Rows rows = samples_->read(steps_done_, plan_.rows);
  const at::Device device = model_->parameters().device();
  Window window{rows.ids.to(device), shift_labels(rows.labels).to(device)};
  const int64_t mine = window.labels.ne(kIgnoreIndex).sum().item<int64_t>();
  window.counted = sum_over(mine, world_.group(Flat::grad), device, "token_count");
  return window;
}

// Back-propagates the SUM of token losses over the one count of the whole window, so that neither micro-batches nor
// ranks change what a token weighs.
double Trainer::backward(const Window& window) {
  const double loss_scale = loss_scale_ ? loss_scale_->scale() : 1.0;
  const double scale = window.counted == 0 ? 0.0 : loss_scale / static_cast<double>(window.counted);
  double loss = 0;
  for (int64_t m = 0; m < plan_.micro_batches; ++m) {
    const Range rows = plan_.micro_batch(m);
    const bool empty = rows.size() == 0;
    const int64_t begin = rows.begin - plan_.rows.begin;
    auto ids =
        empty ? at::zeros({1, window.ids.size(1)}, window.ids.options()) : window.ids.narrow(0, begin, rows.size());
    auto labels = empty ? at::full_like(ids, kIgnoreIndex) : window.labels.narrow(0, begin, rows.size());
    gradients_->begin_micro_batch(m == 0, m + 1 == plan_.micro_batches);
    const auto part = causal_loss(*model_, make_token_batch(ids, labels), scale);
    part.backward();
    gradients_->end_micro_batch();
    loss += part.item<double>();
  }
  return sum_over(loss / loss_scale, world_.group(Flat::grad), model_->parameters().device(), "loss_sum");
}

void Trainer::update(StepResult& result) {
  require(
      loss_scale_ || std::isfinite(result.loss),
      "step {}: the loss is {}; the weights are those after step {}. Try a lower train.optimizer.lr or longer warm-up",
      result.step, result.loss, steps_done_);
  const double unscale = 1.0 / result.loss_scale.value_or(1.0);
  result.grad_norm = global_grad_norm(*state_) * unscale;
  const bool finite = std::isfinite(result.grad_norm);
  require(loss_scale_ || finite, "step {}: the gradient norm is {}; the weights are those after step {}", result.step,
          result.grad_norm, steps_done_);
  if (loss_scale_) {
    loss_scale_->update(!finite);  // every rank has the same norm
  }
  if (!finite) {
    result.skipped = true;
    return;
  }
  if (result.tokens == 0) {
    optimizer_->decay_only(result.lr);
    return;
  }
  const TrainConfig& train = config_.train;
  if (train.clip_grad_value) {
    clip_grad_value(*state_, *train.clip_grad_value / unscale);
  }
  const double clip = train.clip_grad_norm ? clip_factor(result.grad_norm, *train.clip_grad_norm) : 1.0;
  optimizer_->step(result.lr, clip * unscale);
}

}  // namespace tetra
