#include "models/safetensors_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/error.h"
#include "models/safetensors.h"

namespace tetra {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

/// A new file beside `path`: the first of path.tmp.<pid>.0, .1, ... that does not exist.
int create_beside(const std::string& path, std::string& temporary) {
  for (int attempt = 0;; ++attempt) {
    temporary = fmt::format("{}.tmp.{}.{}", path, ::getpid(), attempt);
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      return descriptor;
    }
    const int error = errno;
    require(error == EEXIST && attempt < 1000, "cannot create {}: {}", temporary, reason(error));
  }
}

/// The new name is durable once the folder is. File systems that cannot do this say EINVAL.
void sync_folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(descriptor >= 0, "cannot open folder {}: {}", folder, reason(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  require(result == 0 || error == EINVAL, "cannot flush folder {}: {}", folder, reason(error));
}

}  // namespace

AtomicFile::AtomicFile(std::string path, uint64_t size) : path_(std::move(path)) {
  descriptor_ = create_beside(path_, temporary_);
  if (size > 0 && ::fallocate(descriptor_, 0, 0, static_cast<off_t>(size)) != 0) {
    const int error = errno;
    if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
      ::close(descriptor_);
      ::unlink(temporary_.c_str());
      fail("cannot write {} bytes to {}: {}", size, path_, reason(error));
    }
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write_at(uint64_t offset, const void* data, uint64_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const size_t chunk = std::min<uint64_t>(size, uint64_t{1} << 30);
    const ssize_t written = ::pwrite(descriptor_, next, chunk, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    require(written > 0, "cannot write {} bytes at {} of {}: {}", size, offset, path_,
            written == 0 ? "nothing was written" : reason(errno));
    next += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<uint64_t>(written);
  }
}

void AtomicFile::commit() {
  require(::fsync(descriptor_) == 0, "cannot flush {}: {}", path_, reason(errno));
  const int closed = ::close(std::exchange(descriptor_, -1));
  const int error = errno;
  if (closed != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int why = closed != 0 ? error : errno;
    ::unlink(temporary_.c_str());
    fail("cannot finish {}: {}", path_, reason(why));
  }
  sync_folder_of(path_);
}

void write_file_atomically(const std::string& path, const std::string& text) {
  AtomicFile file(path, 0);
  file.write_at(0, text.data(), text.size());
  file.commit();
}

}  // namespace tetra
