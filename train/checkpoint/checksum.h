#pragma once
// XXH3-64 checksums, as 16 hexadecimal digits.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tetra {

/// Of data that comes in parts.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* data, uint64_t size);
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::string_view data);

struct FileSum {
  uint64_t bytes = 0;
  std::string checksum;
};

/// Reads all of a file. Throws Error with its name and the system's reason.
FileSum sum_file(const std::string& path);

}  // namespace tetra
