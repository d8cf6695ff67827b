#pragma once
// A run's checkpoints: when one is written, which one it goes on from, and what a program adds of its own.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "train/checkpoint/saver.h"
#include "train/config.h"
#include "train/trainer.h"

namespace tetra {

/// A thing of a program's own that a checkpoint keeps: bytes out, bytes in. The main process's is saved; every rank's
/// is loaded.
struct CheckpointObject {
  std::function<std::string()> save;
  std::function<void(const std::string&)> load;
};

/// One rank's view; every function is collective over the world. Without checkpoint.dir nothing happens.
class Checkpoints {
 public:
  Checkpoints(const CheckpointConfig& config, World& world, Trainer& trainer);

  /// Call before resume(), with the same names on all ranks. `name` must be a plain file name.
  void register_for_checkpointing(const std::string& name, CheckpointObject object);

  /// As checkpoint.resume says: `auto` takes the newest whole checkpoint (a broken one is reported and passed over),
  /// `none` none, a folder that one. Returns the step that the trainer stands at then. All ranks agree on it. Throws
  /// Error where there are checkpoints but none can be used.
  int64_t resume();

  /// After each step: saves where checkpoint.every says so.
  void after_step();
  /// Saves now, whatever `every` says, unless this step is saved already.
  void save();
  /// Until what was saved is on the disk, and nothing else is left there. Throws Error where that failed.
  void finish();

 private:
  std::string newest_usable();
  std::string why_unusable(const std::string& folder) const;
  std::map<std::string, std::string> object_bytes() const;

  const CheckpointConfig config_;
  World& world_;
  Trainer& trainer_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::map<std::string, CheckpointObject> objects_;
  int64_t last_saved_ = -1;
};

}  // namespace tetra
