#pragma once
// Folders of checkpoints: DIR/step-00000005, and DIR/.step-00000005.ID.tmp while it is being written.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/file.h"

namespace tetra {

std::string checkpoint_name(int64_t step);  // "step-00000005"

/// The step in such a name; nothing for any other name.
std::optional<int64_t> checkpoint_step(const std::string& name);

/// Paths of the whole checkpoints in `dir`, newest first by number. Other folders and files are ignored, and so is a
/// `dir` that does not exist.
std::vector<std::string> list_checkpoints(const std::string& dir);

/// The temporary folder of one save, where ranks meet. While any of them holds it, nobody's clean-up removes it: each
/// has a lock in it that the system drops when a process ends, however it ends.
class SaveFolder {
 public:
  /// Makes the folder unless another rank did. `save_id` is the same on all ranks and used for no other save.
  SaveFolder(const std::string& dir, int64_t step, const std::string& save_id);

  std::string path(const std::string& file) const { return path_ + "/" + file; }
  const std::string& path() const { return path_; }

  /// Says to the other ranks that this save will not come to an end; the first to say so is heard.
  void give_up(const std::string& why) noexcept;
  /// What another rank said so, if any.
  std::optional<std::string> given_up() const;

  /// Flushes the folder, renames it to its final name and flushes the parent. A checkpoint of the same step gives way.
  void commit();
  /// Whether another rank has done so. Throws Error where the folder is neither here nor there.
  bool committed() const;

 private:
  std::string dir_;
  std::string path_;
  std::string final_path_;
  std::optional<File> lock_;
  struct stat identity_ = {};  // of the folder, which keeps it when it is renamed
};

/// Removes what broken saves left in `dir`, but `mine` and the folder of any save that is under way.
void remove_leftovers(const std::string& dir, const SaveFolder& mine);

/// Removes checkpoints older than `newest_step` beyond the `keep` newest, which count it in; 0 keeps all. Checkpoints
/// of later steps are another run's and stay.
void remove_old_checkpoints(const std::string& dir, int64_t newest_step, int64_t keep);

}  // namespace tetra
