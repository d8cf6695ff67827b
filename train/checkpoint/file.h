#pragma once
// Files and folders through the system's calls; every failure is an Error with the path and the system's reason.

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/error.h"

namespace tetra {

std::string system_reason(int error);

class File {
 public:
  /// As open(2); new files are made with mode 0666 less the umask.
  File(std::string path, int flags);
  ~File();
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  uint64_t size() const;

  /// Up to `size` bytes at `offset`; 0 at the end of the file.
  uint64_t read_some(void* data, uint64_t size, uint64_t offset) const;
  /// All of them; Error where the file ends before.
  void read(void* data, uint64_t size, uint64_t offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// With its parents; one that is there will do.
void make_folders(const std::string& path);

std::string read_text_file(const std::string& path);

/// Makes what was written to a file, or the names in a folder, durable.
void sync_path(const std::string& path);

std::optional<struct stat> status_of(const std::string& path);
bool same_file(const struct stat& a, const struct stat& b);

/// Writes a new file and flushes it; returns its checksum. `data` starts at a page and `size` rounded up to kPage can
/// be read there. Goes past the page cache where the file system can (a checkpoint is not read again soon, and the
/// cores have other work). Error where `cancel` turns true. A file that failed is removed.
inline constexpr uint64_t kPage = 4096;
std::string write_new_file(const std::string& path, const char* data, uint64_t size, const std::atomic<bool>& cancel);

}  // namespace tetra
