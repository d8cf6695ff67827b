#pragma once
// Saving checkpoints beside the training.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "parallel/data/state_part.h"
#include "train/checkpoint/snapshot.h"

namespace tetra {

struct SaverOptions {
  std::string dir;
  int64_t keep = 2;  // whole checkpoints that stay; 0: all
  int rank = 0;
  int world_size = 1;
  bool background = true;
  /// With `background`: save() returns before the parts are copied; call wait_copied() before their memory changes.
  /// Weights and optimizer state change in the optimizer's step alone, so the copy runs during the next forward and
  /// backward pass (as in CheckFreq, Mohan et al., FAST 2021).
  bool deferred_copy = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // for the slowest rank
};

struct CheckpointContent {
  std::vector<StatePart> parts = {};
  std::string state_json = "{}";                    // a JSON object; rank 0's counts
  std::map<std::string, std::string> objects = {};  // file name -> bytes; a name may come from one rank only
};

/// A name for one save that no other save has: rank 0 makes it, and all ranks use it.
std::string make_save_id();

/// One rank's share of saving. The ranks meet in the file system alone, and make no collective calls: each writes a
/// file of its own, and rank 0 waits for them, adds the plan, and renames the folder to its final name. Use it from one
/// thread.
class CheckpointSaver {
 public:
  explicit CheckpointSaver(SaverOptions options);
  /// Finishes the save under way and says on standard error where it failed; cancels it while an exception unwinds.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Allots, in the background, the host memory that saving such parts needs, so that the first save is as quick as the
  /// later ones. `parts` are looked at before it returns.
  void prepare(const std::vector<StatePart>& parts);

  /// Saves DIR/step-NNNNNNNN: copies the parts, which is all that holds up the caller, and goes on in the background
  /// (or here, until all ranks have written, without `background`). All ranks call it with the same step and id. First
  /// waits for the save under way, and throws its Error.
  void save(int64_t step, const std::string& save_id, CheckpointContent content);

  /// Until the parts of the last save() are copied. At once without `deferred_copy`.
  void wait_copied();

  /// Until the last save is on the disk as a whole, with all ranks' files. Throws its Error, which names file and
  /// reason, once; the checkpoints before it are then as they were.
  void wait();

  /// Throws the Error of a save that has failed by now; never waits.
  void check();

 private:
  struct Job;
  void start(std::function<void()> task);
  void run(Job& job);
  CheckpointPlan write_own(const Job& job, const class SaveFolder& folder);

  SaverOptions options_;
  int exceptions_;  // under way when it was made
  Snapshot snapshot_;
  std::shared_future<void> copied_;
  std::future<void> result_;
  std::thread thread_;
  std::atomic<bool> cancel_ = false;
};

}  // namespace tetra
