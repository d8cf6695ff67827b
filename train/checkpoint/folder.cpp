#include "train/checkpoint/folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cstdio>  // renameat2
#include <filesystem>
#include <system_error>
#include <utility>

#include "train/checkpoint/plan.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr size_t kDigits = 8;
constexpr const char* kLock = "lock";
constexpr const char* kGivenUp = "given-up";

// Temporary names start with a point: no list shows them, and a removal that is cut short leaves such a name.
bool is_temporary(const std::string& name) {
  return name.starts_with(fmt::format(".{}", kPrefix)) && name.ends_with(".tmp");
}

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(dir, error), end; !error && item != end; item.increment(error)) {
    names.push_back(item->path().filename().string());
  }
  require(!error || error == std::errc::no_such_file_or_directory, "cannot list {}: {}", dir, error.message());
  return names;
}

// (step, name), newest first.
std::vector<std::pair<int64_t, std::string>> steps_in(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> steps;
  for (const std::string& name : names_in(dir)) {
    if (const auto step = checkpoint_step(name)) {
      steps.emplace_back(*step, name);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

enum class Held { yes, no, unknown };

/// Unknown where the file system has no locks.
Held take_lock(const File& file, int kind) {
  while (::flock(file.descriptor(), kind) != 0) {
    if (errno != EINTR) {
      return errno == EWOULDBLOCK ? Held::no : Held::unknown;
    }
  }
  return Held::yes;
}

// One step, so that no moment sees half a checkpoint under its name.
void remove_checkpoint(const std::string& dir, const std::string& name) {
  const std::string path = dir + "/" + name;
  const std::string hidden = fmt::format("{}/.{}.old.tmp", dir, name);
  std::error_code error;
  fs::remove_all(hidden, error);
  require(std::rename(path.c_str(), hidden.c_str()) == 0, "cannot remove {}: {}", path, system_reason(errno));
  fs::remove_all(hidden, error);
  require(!error, "cannot remove {}: {}", path, error.message());
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::optional<int64_t> checkpoint_step(const std::string& name) {
  const size_t digits = name.size() - std::min(name.size(), std::string_view(kPrefix).size());
  if (!name.starts_with(kPrefix) || digits < kDigits || digits > 18 ||
      name.find_first_not_of("0123456789", name.size() - digits) != std::string::npos) {
    return std::nullopt;
  }
  const int64_t step = std::stoll(name.substr(name.size() - digits));
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

std::vector<std::string> list_checkpoints(const std::string& dir) {
  std::vector<std::string> paths;
  for (const auto& [step, name] : steps_in(dir)) {
    const std::string path = dir + "/" + name;
    if (status_of(path + "/" + kPlanFile)) {
      paths.push_back(path);
    }
  }
  return paths;
}

SaveFolder::SaveFolder(const std::string& dir, int64_t step, const std::string& save_id)
    : dir_(dir),
      path_(fmt::format("{}/.{}.{}.tmp", dir, checkpoint_name(step), save_id)),
      final_path_(dir + "/" + checkpoint_name(step)) {
  make_folders(dir_);
  // Between making the folder and locking it, another run's clean-up may take it away: make it again.
  for (int attempt = 0; attempt < 100; ++attempt) {
    make_folders(path_);
    try {
      lock_.emplace(path(kLock), O_RDWR | O_CREAT);
    } catch (const Error&) {
      require(!status_of(path_) && attempt < 99, "cannot write in the folder {}", path_);
      continue;
    }
    take_lock(*lock_, LOCK_SH);
    struct stat mine = {};
    const auto there = status_of(path(kLock));
    const auto folder = status_of(path_);
    if (there && folder && ::fstat(lock_->descriptor(), &mine) == 0 && same_file(*there, mine)) {
      identity_ = *folder;
      return;
    }
  }
  fail("cannot lock the folder {}: it is removed again and again", path_);
}

void SaveFolder::give_up(const std::string& why) noexcept {
  try {
    const File file(path(kGivenUp), O_WRONLY | O_CREAT | O_EXCL);
    // On a full disk the empty file still speaks.
    [[maybe_unused]] const auto count = ::pwrite(file.descriptor(), why.data(), why.size(), 0);
  } catch (const std::exception&) {  // another rank was first, or the folder is gone
    return;
  }
}

std::optional<std::string> SaveFolder::given_up() const {
  if (!status_of(path(kGivenUp))) {
    return std::nullopt;
  }
  const std::string why = read_text_file(path(kGivenUp));
  return why.empty() ? "another rank failed" : why;
}

void SaveFolder::commit() {
  sync_path(path_);
  if (std::rename(path_.c_str(), final_path_.c_str()) != 0) {
    const int error = errno;
    require(error == EEXIST || error == ENOTEMPTY, "cannot rename {} to {}: {}", path_, final_path_,
            system_reason(error));
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_path_.c_str(), RENAME_EXCHANGE) != 0) {
      remove_checkpoint(dir_, fs::path(final_path_).filename());  // a file system that cannot exchange
      require(std::rename(path_.c_str(), final_path_.c_str()) == 0, "cannot rename {} to {}: {}", path_, final_path_,
              system_reason(errno));
    }
  }
  sync_path(dir_);
  std::error_code ignored;
  fs::remove_all(path_, ignored);  // the one that gave way
  fs::remove(final_path_ + "/" + kLock, ignored);
}

bool SaveFolder::committed() const {
  const auto final = status_of(final_path_);
  if (final && same_file(*final, identity_)) {
    return true;
  }
  // Renamed between the two looks, it is found at the second look at the final name.
  if (!status_of(path_)) {
    const auto again = status_of(final_path_);
    require(again && same_file(*again, identity_), "{} is gone: it was removed while it was being written", path_);
    return true;
  }
  return false;
}

void remove_leftovers(const std::string& dir, const SaveFolder& mine) {
  for (const std::string& name : names_in(dir)) {
    const std::string path = dir + "/" + name;
    if (!is_temporary(name) || path == mine.path()) {
      continue;
    }
    try {
      const File lock(path + "/" + kLock, O_RDWR | O_CREAT);
      if (take_lock(lock, LOCK_EX | LOCK_NB) == Held::yes) {
        fs::remove_all(path);
      }
    } catch (const std::exception&) {  // someone else's, or just gone: it harms nobody
      continue;
    }
  }
}

void remove_old_checkpoints(const std::string& dir, int64_t newest_step, int64_t keep) {
  int64_t seen = 0;
  for (const auto& [step, name] : steps_in(dir)) {
    if (keep > 0 && step <= newest_step && ++seen > keep) {
      remove_checkpoint(dir, name);
    }
  }
}

}  // namespace tetra
