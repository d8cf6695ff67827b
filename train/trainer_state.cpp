// What of a trainer outlives it: Trainer's part in checkpoints.

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/model_config.h"
#include "train/checkpoint/hugging_face.h"
#include "train/checkpoint/reader.h"
#include "train/trainer.h"

namespace tetra {
namespace {

using nlohmann::json;

json to_json(const LossScale::State& s) {
  return {{"scale", s.scale},
          {"good_steps", s.good_steps},
          {"hysteresis_left", s.hysteresis_left},
          {"hopeless", s.hopeless},
          {"skipped", s.skipped}};
}

LossScale::State loss_scale_state(const json& s) {
  return {s.at("scale"), s.at("good_steps"), s.at("hysteresis_left"), s.at("hopeless"), s.at("skipped")};
}

// Everything on which the order of samples and random draws depends.
json data_identity(const Config& config, const SampleSource& samples) {
  return {{"seed", config.seed},
          {"global_batch_size", config.train.global_batch_size},
          {"seq_len", config.data.seq_len},
          {"samples", samples.identity()}};
}

void check_same(const std::string& folder, const std::string& what, const json& saved, const json& mine) {
  require(saved == mine,
          "{}: {} is {} there and {} in this run; resume with the same, or start anew from its weights "
          "(tetra convert, then model.from)",
          folder, what, saved.dump(), mine.dump());
}

}  // namespace

std::string Trainer::state_json() const {
  json state;
  state["step"] = steps_done_;
  state["optimizer"] = {{"type", config_.train.optimizer.type}, {"steps", optimizer_->steps_done()}};
  state["loss_scale"] = loss_scale_ ? to_json(loss_scale_->state()) : json();
  state["data"] = data_identity(config_, *samples_);
  state["precision"] = config_.train.precision;
  state[kModelConfigField] = json::parse(write_model_config(model_->config(), "float32"));
  return state.dump();
}

void Trainer::load(const CheckpointReader& reader) {
  const json state = json::parse(reader.state_json());
  const bool weights_alone = !state.contains("optimizer");
  if (weights_alone) {
    reader.read_converted(weights_to_load(*state_));
    state_->masters_changed();
    return;
  }
  const std::string& folder = reader.folder();
  check_same(folder, "train.optimizer.type", state.at("optimizer").at("type"), config_.train.optimizer.type);
  const json mine = data_identity(config_, *samples_);
  for (const auto& [key, value] : mine.items()) {
    check_same(folder, key, state.at("data").value(key, json()), value);
  }
  reader.read(parts_to_load(*state_, *optimizer_));
  state_->masters_changed();
  steps_done_ = state.at("step");
  optimizer_->set_steps_done(state.at("optimizer").at("steps"));
  if (loss_scale_ && !state.at("loss_scale").is_null()) {
    loss_scale_->restore(loss_scale_state(state.at("loss_scale")));
  }
}

}  // namespace tetra
