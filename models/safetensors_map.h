#pragma once
// A file mapped into memory, read-only.

#include <cstdint>
#include <string>

namespace tetra {

/// Maps all of a regular file; an empty file has data() null. Throws Error naming the path and the system's reason.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  const char* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace tetra
