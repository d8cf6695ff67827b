#include "train/checkpoints.h"

#include <filesystem>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/error.h"
#include "mesh/collectives.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/reader.h"

namespace tetra {
namespace {

// What rank 0 says, on every rank.
std::string from_main(const World& world, const std::string& text, const char* site) {
  return all_gather_strings(world.is_main_process() ? text : "", world.group(Flat::world), site).front();
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    result.push_back(line);
  }
  return result;
}

// What a killed run left is removed by the next save; but a run that resumes at its last step saves no more.
void clean_up(const CheckpointConfig& config, int64_t step) {
  const SaveFolder mine(config.dir, step, make_save_id());
  remove_leftovers(config.dir, mine);
  std::filesystem::remove_all(mine.path());
  remove_old_checkpoints(config.dir, step, config.keep);
}

}  // namespace

Checkpoints::Checkpoints(const CheckpointConfig& config, World& world, Trainer& trainer)
    : config_(config), world_(world), trainer_(trainer) {
  if (config_.dir.empty()) {
    return;
  }
  SaverOptions options;
  options.dir = config_.dir;
  options.keep = config_.keep;
  options.rank = world.rank();
  options.world_size = world.world_size();
  options.background = config_.background;
  options.deferred_copy = config_.background;
  saver_ = std::make_unique<CheckpointSaver>(options);
  trainer_.before_update([this] { saver_->wait_copied(); });
}

void Checkpoints::register_for_checkpointing(const std::string& name, CheckpointObject object) {
  require(!name.empty() && std::filesystem::path(name).filename() == name,
          "register_for_checkpointing: '{}' is not a plain file name", name);
  require(objects_.emplace(name, std::move(object)).second, "register_for_checkpointing: {} is there already", name);
}

int64_t Checkpoints::resume() {
  if (config_.dir.empty() || config_.resume == "none") {
    return trainer_.steps_done();
  }
  std::string folder = config_.resume;
  if (config_.resume == "auto") {
    folder = newest_usable();
    if (folder.empty()) {
      return trainer_.steps_done();
    }
  } else {
    const std::string why = why_unusable(folder);
    require(why.empty(), "checkpoint.resume: {}", why);
  }
  const CheckpointReader reader = CheckpointReader::open(folder);
  trainer_.load(reader);
  for (const auto& [name, object] : objects_) {
    if (reader.has_object(name)) {
      object.load(reader.object(name));
    }
  }
  last_saved_ = trainer_.steps_done();
  world_.barrier("checkpoint.resume");
  world_.print(fmt::format("resumed {} at step {}", folder, trainer_.steps_done()));
  return trainer_.steps_done();
}

std::string Checkpoints::newest_usable() {
  const std::string known = fmt::format("{}", fmt::join(list_checkpoints(config_.dir), "\n"));
  std::vector<std::string> broken;
  for (const std::string& folder : lines(from_main(world_, known, "checkpoint.list"))) {
    const std::string why = why_unusable(folder);
    if (why.empty()) {
      return folder;
    }
    world_.print(fmt::format("checkpoint passed over: {}", why));
    broken.push_back(why);
  }
  require(broken.empty(), "no checkpoint in {} can be used: {}. Remove them, or set checkpoint.resume to none",
          config_.dir, fmt::join(broken, "; "));
  return "";
}

// The first rank's complaint, the same on every rank.
std::string Checkpoints::why_unusable(const std::string& folder) const {
  std::string mine;
  try {
    const CheckpointReader reader = CheckpointReader::open(folder);
    if (config_.verify) {
      mine = reader.verify(world_.rank(), world_.world_size()).value_or("");
    }
  } catch (const Error& error) {
    mine = error.what();
  }
  for (const std::string& text : all_gather_strings(mine, world_.group(Flat::world), "checkpoint.check")) {
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

void Checkpoints::after_step() {
  if (saver_ == nullptr) {
    return;
  }
  saver_->check();
  if (config_.every > 0 && trainer_.steps_done() % config_.every == 0) {
    save();
  }
}

void Checkpoints::save() {
  if (saver_ == nullptr || trainer_.steps_done() == last_saved_) {
    return;
  }
  const std::string id = from_main(world_, make_save_id(), "checkpoint.id");
  CheckpointContent content;
  content.parts = trainer_.state_parts();
  content.state_json = trainer_.state_json();
  if (world_.is_main_process()) {
    content.objects = object_bytes();
  }
  saver_->save(trainer_.steps_done(), id, std::move(content));
  last_saved_ = trainer_.steps_done();
}

std::map<std::string, std::string> Checkpoints::object_bytes() const {
  std::map<std::string, std::string> bytes;
  for (const auto& [name, object] : objects_) {
    bytes[name] = object.save();
  }
  return bytes;
}

void Checkpoints::finish() {
  if (saver_ == nullptr) {
    return;
  }
  saver_->wait();
  if (world_.is_main_process() && last_saved_ >= 0) {
    clean_up(config_, last_saved_);
  }
}

}  // namespace tetra
