#include "models/safetensors_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "kernels/error.h"
#include "models/strict_json.h"

namespace tetra {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is mapped as it lies in the file");

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";

struct DtypeName {
  const char* name;
  at::ScalarType dtype;
};
// Backwards, this is the reference implementation's order of tensors in a file.
constexpr std::array<DtypeName, 17> kDtypes = {{
    {"BOOL", at::ScalarType::Bool},
    {"U8", at::ScalarType::Byte},
    {"I8", at::ScalarType::Char},
    {"F8_E5M2", at::ScalarType::Float8_e5m2},
    {"F8_E4M3", at::ScalarType::Float8_e4m3fn},
    {"F8_E8M0", at::ScalarType::Float8_e8m0fnu},
    {"I16", at::ScalarType::Short},
    {"U16", at::ScalarType::UInt16},
    {"F16", at::ScalarType::Half},
    {"BF16", at::ScalarType::BFloat16},
    {"I32", at::ScalarType::Int},
    {"U32", at::ScalarType::UInt32},
    {"F32", at::ScalarType::Float},
    {"C64", at::ScalarType::ComplexFloat},
    {"F64", at::ScalarType::Double},
    {"I64", at::ScalarType::Long},
    {"U64", at::ScalarType::UInt64},
}};

size_t dtype_rank(at::ScalarType dtype) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (dtype == kDtypes[i].dtype) {
      return i;
    }
  }
  fail("the safetensors format has no name for type {}", c10::toString(dtype));
}

at::ScalarType dtype_of(const std::string& name, const std::string& origin) {
  for (const auto& entry : kDtypes) {
    if (name == entry.name) {
      return entry.dtype;
    }
  }
  fail("{}: dtype '{}' is not known", origin, name);
}

/// A JSON number that is a plain non-negative integer below 2^63: not -1, 1.0, 1e3 or "1".
uint64_t size_from(const json& value, const std::string& origin, const char* field) {
  require(value.is_number_unsigned(), "{}: {} holds {}, which is not a non-negative integer", origin, field,
          value.dump(-1, ' ', true, json::error_handler_t::replace));
  const auto number = value.get<uint64_t>();
  require(number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), "{}: {} holds {}, which is too large",
          origin, field, number);
  return number;
}

const json& field_of(const json& entry, const char* field, const std::string& origin) {
  const auto found = entry.find(field);
  require(found != entry.end(), "{}: '{}' is missing", origin, field);
  return *found;
}

SafetensorsEntry parse_entry(const json& value, const std::string& origin) {
  require(value.is_object(), "{}: its entry is not an object", origin);
  for (const auto& [key, unused] : value.items()) {
    require(key == "dtype" || key == "shape" || key == "data_offsets", "{}: unknown field '{}'", origin, key);
  }
  const json& dtype = field_of(value, "dtype", origin);
  const json& shape = field_of(value, "shape", origin);
  const json& offsets = field_of(value, "data_offsets", origin);
  require(dtype.is_string(), "{}: dtype is not a string", origin);
  require(shape.is_array(), "{}: shape is not a list", origin);
  require(offsets.is_array() && offsets.size() == 2, "{}: data_offsets is not a pair", origin);

  SafetensorsEntry entry;
  entry.dtype = dtype_of(dtype.get<std::string>(), origin);
  for (const auto& size : shape) {
    entry.shape.push_back(static_cast<int64_t>(size_from(size, origin, "shape")));
  }
  entry.begin = size_from(offsets[0], origin, "data_offsets");
  entry.end = size_from(offsets[1], origin, "data_offsets");
  require(entry.begin <= entry.end, "{}: data_offsets [{}, {}] run backwards", origin, entry.begin, entry.end);
  uint64_t bytes = 0;
  require(tensor_bytes(entry.dtype, entry.shape, bytes), "{}: shape {} is larger than any file", origin, entry.shape);
  require(entry.end - entry.begin == bytes, "{}: data_offsets [{}, {}] hold {} bytes, but {} {} needs {}", origin,
          entry.begin, entry.end, entry.end - entry.begin, dtype.get<std::string>(), entry.shape, bytes);
  return entry;
}

void check_metadata(const json& metadata, const std::string& path) {
  require(metadata.is_object(), "{}: {} is not an object", path, kMetadata);
  for (const auto& [key, value] : metadata.items()) {
    require(value.is_string(), "{}: {} may hold strings only, but '{}' is {}", path, kMetadata, key, value.type_name());
  }
}

/// Tensors must cover the data section without hole or overlap, and the file must end where they do.
void check_tiling(const SafetensorsHeader& header, uint64_t data_size, const std::string& path) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
  for (const auto& [name, entry] : header.tensors) {
    order.emplace_back(&name, &entry);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  uint64_t expected = 0;
  for (const auto& [name, entry] : order) {
    require(entry->begin >= expected,
            "{}: tensor '{}': data_offsets [{}, {}] overlap the tensor before it, which ends at {}", path, *name,
            entry->begin, entry->end, expected);
    require(entry->begin <= expected, "{}: tensor '{}': hole in the data before it, from {} to {}", path, *name,
            expected, entry->begin);
    expected = entry->end;
  }
  require(expected <= data_size, "{}: truncated: the header describes {} bytes of data, the file holds {}", path,
          expected, data_size);
  require(expected >= data_size, "{}: {} bytes follow the last tensor", path, data_size - expected);
}

}  // namespace

bool tensor_bytes(at::ScalarType dtype, const std::vector<int64_t>& shape, uint64_t& bytes) {
  int64_t total = static_cast<int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      return false;
    }
    empty = empty || size == 0;
  }
  for (const int64_t size : shape) {
    if (!empty && __builtin_mul_overflow(total, size, &total)) {
      return false;
    }
  }
  bytes = empty ? 0 : static_cast<uint64_t>(total);
  return true;
}

const char* safetensors_dtype_name(at::ScalarType dtype) {
  return kDtypes[dtype_rank(dtype)].name;
}

SafetensorsHeader parse_safetensors_header(const char* bytes, uint64_t size, const std::string& path) {
  require(size >= 8, "{}: truncated: {} bytes, a safetensors file has at least 8", path, size);
  uint64_t length = 0;
  std::memcpy(&length, bytes, sizeof length);
  require(length <= kMaxSafetensorsHeader, "{}: header of {} bytes; at most {} are allowed (is it a safetensors file?)",
          path, length, kMaxSafetensorsHeader);
  require(length <= size - 8, "{}: truncated: the header has {} bytes, the file {}", path, length, size);
  require(length >= 2 && bytes[8] == '{', "{}: the header does not start with '{{'", path);

  const json root = parse_strict_json(std::string_view(bytes + 8, length), path, 3);
  SafetensorsHeader header;
  header.data_begin = 8 + length;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadata) {
      check_metadata(value, path);
    } else {
      header.tensors.emplace(name, parse_entry(value, fmt::format("{}: tensor '{}'", path, name)));
    }
  }
  check_tiling(header, size - header.data_begin, path);
  return header;
}

namespace {

std::string json_string(const std::string& name, const std::string& path) {
  try {
    return json(name).dump();
  } catch (const json::exception& error) {
    fail("{}: a tensor name is not valid UTF-8: {}", path, error.what());
  }
}

std::vector<const TensorShapes::value_type*> reference_order(const TensorShapes& tensors) {
  std::vector<const TensorShapes::value_type*> order;
  for (const auto& item : tensors) {
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return dtype_rank(a->second.first) > dtype_rank(b->second.first);
  });
  return order;
}

}  // namespace

SafetensorsLayout layout_safetensors(const TensorShapes& tensors, const std::string& path) {
  SafetensorsLayout layout;
  std::string text = fmt::format("{{\"{}\":{{\"format\":\"pt\"}}", kMetadata);
  uint64_t offset = 0;
  for (const auto* item : reference_order(tensors)) {
    const auto& [name, declared] = *item;
    require(name != kMetadata, "{}: a tensor cannot be named {}", path, kMetadata);
    uint64_t bytes = 0;
    require(tensor_bytes(declared.first, declared.second, bytes) &&
                bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - offset,
            "{}: tensor '{}': shape {} is not possible", path, name, declared.second);
    layout.tensors[name] = {declared.first, declared.second, offset, offset + bytes};
    text +=
        fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json_string(name, path),
                    safetensors_dtype_name(declared.first), fmt::join(declared.second, ","), offset, offset + bytes);
    offset += bytes;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  require(text.size() <= kMaxSafetensorsHeader, "{}: {} tensors need a header of {} bytes; at most {} are allowed",
          path, tensors.size(), text.size(), kMaxSafetensorsHeader);
  const uint64_t length = text.size();
  layout.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.header += text;
  layout.file_size = layout.header.size() + offset;
  return layout;
}

}  // namespace tetra
