#pragma once
// A file that appears under its name only when it is whole and on the disk.

#include <cstdint>
#include <string>

namespace tetra {

/// Written under a temporary name beside `path`, made durable and renamed by commit(); removed if that never comes.
/// Every failure is an Error with the path, the number of bytes and the system's reason.
class AtomicFile {
 public:
  /// Reserves `size` bytes where the file system can, so that a full disk shows at once. Throws Error.
  AtomicFile(std::string path, uint64_t size);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write_at(uint64_t offset, const void* data, uint64_t size);
  /// fsync, rename, fsync of the folder.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace tetra
