#include "models/safetensors_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/error.h"

namespace tetra {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe by mistake must be an error, not a wait.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(descriptor >= 0, "cannot open {}: {}", path, reason(errno));
  struct stat status = {};
  const bool known = ::fstat(descriptor, &status) == 0;
  const bool regular = known && S_ISREG(status.st_mode);
  void* data = nullptr;
  int error = 0;
  if (regular && status.st_size > 0) {
    data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, descriptor, 0);
    error = data == MAP_FAILED ? errno : 0;
  }
  ::close(descriptor);
  require(regular, "cannot read {}: not a regular file", path);
  require(error == 0, "cannot map {} ({} bytes): {}", path, status.st_size, reason(error));
  data_ = static_cast<const char*>(data);
  size_ = static_cast<uint64_t>(status.st_size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<char*>(data_), size_);
  }
}

}  // namespace tetra
