#include "train/checkpoint/checksum.h"

#include <fcntl.h>

#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "train/checkpoint/file.h"

namespace tetra {

struct Checksum::State {
  XXH3_state_t hash;  // aligned to 64 bytes by its type
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->hash);
}
Checksum::~Checksum() = default;

void Checksum::add(const void* data, uint64_t size) {
  XXH3_64bits_update(&state_->hash, data, size);
}

std::string Checksum::digits() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(&state_->hash));
}

std::string checksum_of(std::string_view data) {
  return fmt::format("{:016x}", XXH3_64bits(data.data(), data.size()));
}

FileSum sum_file(const std::string& path) {
  constexpr uint64_t kBlock = uint64_t{1} << 20;
  const File file(path, O_RDONLY);
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<char> block(kBlock);
  Checksum sum;
  FileSum result;
  while (const uint64_t count = file.read_some(block.data(), kBlock, result.bytes)) {
    sum.add(block.data(), count);
    result.bytes += count;
  }
  result.checksum = sum.digits();
  return result;
}

}  // namespace tetra
