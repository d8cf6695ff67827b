#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <ostream>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "mesh/collectives.h"
#include "train/samples.h"

namespace tetra::testing {
namespace {

double relative(double got, double expected, double scale) {
  const double error = std::abs(got - expected) / std::max(std::abs(scale), 1e-300);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

// Sum and norm over the elements that this rank owns, added up over tp.
Trajectory::Weight global_weight(const Parameter& parameter, const World& world) {
  double sum = 0;
  double squares = 0;
  const auto value = parameter.value.detach().to(at::kDouble);
  for (const Range& range : parameter.cut.owned_local(world.coordinate(Axis::tp))) {
    const auto part = value.narrow(parameter.cut.dim(), range.begin, range.size());
    sum += part.sum().item<double>();
    squares += part.square().sum().item<double>();
  }
  auto both = at::stack({at::scalar_tensor(sum, at::kDouble), at::scalar_tensor(squares, at::kDouble)});
  all_reduce(both, world.group(Axis::tp), "test.weights");
  return {both[0].item<double>(), std::sqrt(both[1].item<double>())};
}

std::vector<double> probe(Trainer& trainer, const Config& config) {
  const auto samples = open_samples(config, trainer.model().config().vocab_size);
  const auto ids = samples->read(0, {0, 2}).ids;
  const auto logits = full_logits(trainer.model(), make_token_batch(ids)).to(at::kDouble);
  const auto picked = logits.select(1, logits.size(1) - 1).narrow(1, 0, 8).contiguous();
  return {picked.const_data_ptr<double>(), picked.const_data_ptr<double>() + picked.numel()};
}

}  // namespace

Reference load_reference(const std::string& name) {
  Reference reference;
  reference.folder = std::string(TETRA_TEST_DATA) + "/reference/" + name;
  std::ifstream file(reference.folder + "/trajectory.json");
  const auto json = nlohmann::json::parse(file);

  Config& c = reference.config;
  c.model.from = reference.folder;
  c.data.tokens = reference.folder + "/tokens.bin";
  if (std::filesystem::exists(reference.folder + "/labels.bin")) {
    c.data.labels = reference.folder + "/labels.bin";
  }
  c.data.seq_len = json["seq_len"];
  c.train.steps = json["steps"];
  c.train.global_batch_size = json["global_batch"];
  c.train.micro_batch_size = json["global_batch"];
  c.train.precision = json["dtype"] == "float64" ? "fp64" : "fp32";
  c.train.optimizer.lr = json["lr"];
  c.train.optimizer.betas = {json["betas"][0], json["betas"][1]};
  c.train.optimizer.eps = json["eps"];
  c.train.optimizer.weight_decay = json["weight_decay"];
  c.train.clip_grad_norm = json["clip_grad_norm"].get<double>();

  Trajectory& t = reference.expected;
  for (const auto& step : json["steps_log"]) {
    t.losses.push_back(step["loss"]);
    t.grad_norms.push_back(step["grad_norm"]);
    t.tokens.push_back(step["tokens"]);
  }
  for (const auto& [key, value] : json["final"].items()) {
    t.weights[key] = {value[0], value[1]};
  }
  for (const auto& row : json["probe_logits"]) {
    t.probe.insert(t.probe.end(), row.begin(), row.end());
  }
  return reference;
}

std::string Layout::name() const {
  const std::string zero = shard == 1 ? "" : fmt::format("_shard{}_zero{}", shard, zero_stage);
  return fmt::format("dp{}{}_tp{}{}_x{}", dp, zero, tp, sequence_parallel ? "_sp" : "", micro_batches);
}

Config apply(Config config, const Layout& layout) {
  config.parallelism.degrees.dp_replicate = layout.dp;
  config.parallelism.degrees.dp_shard = layout.shard;
  config.parallelism.zero_stage = layout.zero_stage;
  config.parallelism.degrees.tp = layout.tp;
  config.parallelism.sequence_parallel = layout.sequence_parallel;
  const int64_t data_ranks = layout.dp * layout.shard;
  const int64_t share = (config.train.global_batch_size + data_ranks - 1) / data_ranks;
  config.train.micro_batch_size = std::max<int64_t>(1, share / layout.micro_batches);
  return config;
}

Trajectory train(const Config& config, World& world, const std::function<void(Trainer&)>& before) {
  Trainer trainer(config, world);
  if (before) {
    before(trainer);
  }
  Trajectory t;
  for (int64_t i = 0; i < config.train.steps; ++i) {
    const StepResult step = trainer.step();
    t.losses.push_back(step.loss);
    t.grad_norms.push_back(step.grad_norm);
    t.tokens.push_back(step.tokens);
  }
  for (size_t unit = 0; unit < trainer.state().units().size(); ++unit) {
    trainer.state().gather(unit);
  }
  for (const Parameter& parameter : trainer.model().parameters().all()) {
    t.weights[parameter.name] = global_weight(parameter, world);
  }
  t.probe = probe(trainer, config);
  return t;
}

Trajectory train_local(const Config& config, const std::function<void(World&)>& prepare) {
  Trajectory result;
  WorldOptions options;
  options.degrees = config.parallelism.degrees;
  options.debug = config.parallelism.debug_collectives;
  options.timeout = std::chrono::seconds(60);
  run_local_ranks(static_cast<int>(options.degrees.world_size()), options, [&](World& world) {
    if (prepare) {
      prepare(world);
    }
    Trajectory mine = train(config, world);
    if (world.is_main_process()) {
      result = std::move(mine);
    }
  });
  return result;
}

bool Errors::within(double tolerance, double weight_tolerance) const {
  return loss <= tolerance && norm <= tolerance && weights <= weight_tolerance && probe <= weight_tolerance;
}

Errors compare(const Trajectory& got, const Trajectory& expected) {
  Errors errors;
  if (got.tokens != expected.tokens || got.losses.size() != expected.losses.size()) {
    errors.loss = std::numeric_limits<double>::infinity();
    return errors;
  }
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    errors.loss = std::max(errors.loss, relative(got.losses[i], expected.losses[i], expected.losses[i]));
    errors.norm = std::max(errors.norm, relative(got.grad_norms[i], expected.grad_norms[i], expected.grad_norms[i]));
  }
  for (const auto& [name, weight] : got.weights) {
    const auto& wanted = expected.weights.at(name);
    errors.weights = std::max(
        {errors.weights, relative(weight.sum, wanted.sum, wanted.l2), relative(weight.l2, wanted.l2, wanted.l2)});
  }
  double largest = 0;
  for (const double logit : expected.probe) {
    largest = std::max(largest, std::abs(logit));
  }
  for (size_t i = 0; i < expected.probe.size(); ++i) {
    errors.probe = std::max(errors.probe, relative(got.probe.at(i), expected.probe[i], largest));
  }
  return errors;
}

std::ostream& operator<<(std::ostream& out, const Errors& e) {
  return out << fmt::format("loss {:.1e} norm {:.1e} weights {:.1e} probe {:.1e}", e.loss, e.norm, e.weights, e.probe);
}

}  // namespace tetra::testing
