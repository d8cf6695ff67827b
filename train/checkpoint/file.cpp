#include "train/checkpoint/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "train/checkpoint/checksum.h"

namespace tetra {

std::string system_reason(int error) {
  return std::generic_category().message(error);
}

File::File(std::string path, int flags) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe by mistake must be an error, not a wait.
  descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  require(descriptor_ >= 0, "cannot open {}: {}", path_, system_reason(errno));
}

File::~File() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

uint64_t File::size() const {
  struct stat status = {};
  require(::fstat(descriptor_, &status) == 0, "cannot look at {}: {}", path_, system_reason(errno));
  return static_cast<uint64_t>(status.st_size);
}

uint64_t File::read_some(void* data, uint64_t size, uint64_t offset) const {
  for (;;) {
    const uint64_t most = std::min(size, uint64_t{1} << 30);
    const ssize_t count = ::pread(descriptor_, data, most, static_cast<off_t>(offset));
    if (count >= 0) {
      return static_cast<uint64_t>(count);
    }
    require(errno == EINTR, "cannot read {} bytes at {} of {}: {}", size, offset, path_, system_reason(errno));
  }
}

void File::read(void* data, uint64_t size, uint64_t offset) const {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    const uint64_t count = read_some(next, size, offset);
    require(count > 0, "{}: truncated: it ends at byte {}, {} more are wanted", path_, offset, size);
    next += count;
    offset += count;
    size -= count;
  }
}

std::string read_text_file(const std::string& path) {
  const File file(path, O_RDONLY);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

void sync_path(const std::string& path) {
  const File file(path, O_RDONLY);
  // File systems that cannot flush folders say EINVAL.
  require(::fsync(file.descriptor()) == 0 || errno == EINVAL, "cannot flush {}: {}", path, system_reason(errno));
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) {
    return status;
  }
  require(errno == ENOENT || errno == ENOTDIR, "cannot look at {}: {}", path, system_reason(errno));
  return std::nullopt;
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  require(!error, "cannot make the folder {}: {}", path, error.message());
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

namespace {

constexpr uint64_t kWriteBlock = uint64_t{16} << 20;

/// A thread that sums the data while it is being written.
class BackgroundSum {
 public:
  BackgroundSum(const char* data, uint64_t size)
      : thread_([this, data, size] {
          for (uint64_t at = 0; at < size && !stop_; at += kWriteBlock) {
            sum_.add(data + at, std::min(kWriteBlock, size - at));
          }
        }) {}
  ~BackgroundSum() {
    stop_ = true;
    join();
  }
  BackgroundSum(const BackgroundSum&) = delete;
  BackgroundSum& operator=(const BackgroundSum&) = delete;

  std::string digits() {
    join();
    return sum_.digits();
  }

 private:
  void join() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  Checksum sum_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // last: it uses the others
};

void reserve_room(const File& file, uint64_t size) {
  if (size > 0 && ::fallocate(file.descriptor(), 0, 0, static_cast<off_t>(size)) != 0) {
    const int error = errno;
    require(error != ENOSPC && error != EFBIG && error != EDQUOT, "cannot write {} bytes to {}: {}", size, file.path(),
            system_reason(error));
  }
}

bool set_direct(const File& file, bool direct) {
  const int flags = ::fcntl(file.descriptor(), F_GETFL);
  return flags >= 0 && ::fcntl(file.descriptor(), F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

// Past the cache, offsets and sizes are whole pages; what is too much at the end is cut off afterwards.
void write_all(const File& file, const char* data, uint64_t size, const std::atomic<bool>& cancel) {
  bool direct = set_direct(file, true);
  for (uint64_t at = 0; at < size;) {
    require(!cancel, "{}: cancelled", file.path());
    const uint64_t left = direct ? (size - at + kPage - 1) / kPage * kPage : size - at;
    const ssize_t count = ::pwrite(file.descriptor(), data + at, std::min(left, kWriteBlock), static_cast<off_t>(at));
    if (count < 0 && errno == EINVAL && direct) {
      direct = false;
      set_direct(file, false);
    } else if (count < 0 && errno != EINTR) {
      fail("cannot write {} bytes at {} of {}: {}", size - at, at, file.path(), system_reason(errno));
    } else if (count > 0) {
      at += static_cast<uint64_t>(count);
      if (direct && at % kPage != 0) {  // stopped within a page
        direct = false;
        set_direct(file, false);
      }
    }
  }
  require(::ftruncate(file.descriptor(), static_cast<off_t>(size)) == 0, "cannot set the size of {}: {}", file.path(),
          system_reason(errno));
}

}  // namespace

std::string write_new_file(const std::string& path, const char* data, uint64_t size, const std::atomic<bool>& cancel) {
  const File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  try {
    reserve_room(file, size);
    BackgroundSum sum(data, size);
    write_all(file, data, size, cancel);
    require(::fsync(file.descriptor()) == 0, "cannot flush {}: {}", path, system_reason(errno));
    return sum.digits();
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

}  // namespace tetra
