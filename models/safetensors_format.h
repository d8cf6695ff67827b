#pragma once
// The safetensors file format: [u64 N][N bytes of JSON][data], little-endian. Shared by reader and writer.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tetra {

/// Readers refuse longer headers, as the reference implementation does.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Where one tensor lies: byte offsets from the start of the data section.
struct SafetensorsEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafetensorsHeader {
  uint64_t data_begin = 0;  // byte of the file at which the data section starts
  std::map<std::string, SafetensorsEntry> tensors;
};

/// Reads and checks the header of a file of `size` bytes at `bytes`: every rule of the format, and that the tensors
/// tile the data section exactly. Throws Error naming `path` and the tensor.
SafetensorsHeader parse_safetensors_header(const char* bytes, uint64_t size, const std::string& path);

using TensorShapes = std::map<std::string, std::pair<at::ScalarType, std::vector<int64_t>>>;

/// The first 8+N bytes of a file with these tensors, in the order of the reference implementation (types from wide to
/// narrow, then names), padded so that the data starts at a multiple of 8; and where each tensor goes.
struct SafetensorsLayout {
  std::string header;
  uint64_t file_size = 0;
  std::map<std::string, SafetensorsEntry> tensors;
};
SafetensorsLayout layout_safetensors(const TensorShapes& tensors, const std::string& path);

/// "BF16" and so on. Throws Error for a type that the format does not have.
const char* safetensors_dtype_name(at::ScalarType dtype);

/// Bytes of a tensor; false where it does not fit in 63 bits or a dim is negative.
bool tensor_bytes(at::ScalarType dtype, const std::vector<int64_t>& shape, uint64_t& bytes);

}  // namespace tetra
