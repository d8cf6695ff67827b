#include "models/safetensors_convert.h"

#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace tetra {
namespace {

template <int bytes>
void copy_same(const void* source, void* target, int64_t count) {
  std::memcpy(target, source, static_cast<size_t>(count) * bytes);
}

template <typename From, typename To>
void convert(const void* source, void* target, int64_t count) {
  const char* in = static_cast<const char*>(source);
  To* out = static_cast<To*>(target);
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, in + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    out[i] = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse): int8 tensors hold numbers
  }
}

template <typename From>
CopyRun convert_to(at::ScalarType to) {
  switch (to) {
    case at::ScalarType::Double:
      return convert<From, double>;
    case at::ScalarType::Float:
      return convert<From, float>;
    case at::ScalarType::Half:
      return convert<From, c10::Half>;
    case at::ScalarType::BFloat16:
      return convert<From, c10::BFloat16>;
    case at::ScalarType::Long:
      if constexpr (std::is_integral_v<From> && !std::is_same_v<From, uint64_t>) {
        return convert<From, int64_t>;
      }
      return nullptr;
    default:
      return nullptr;
  }
}

CopyRun same_size(size_t bytes) {
  switch (bytes) {
    case 1:
      return copy_same<1>;
    case 2:
      return copy_same<2>;
    case 4:
      return copy_same<4>;
    default:
      return copy_same<8>;
  }
}

}  // namespace

CopyRun copy_run_for(at::ScalarType from, at::ScalarType to) {
  if (from == to) {
    return same_size(c10::elementSize(from));
  }
  switch (from) {
    case at::ScalarType::Double:
      return convert_to<double>(to);
    case at::ScalarType::Float:
      return convert_to<float>(to);
    case at::ScalarType::Half:
      return convert_to<c10::Half>(to);
    case at::ScalarType::BFloat16:
      return convert_to<c10::BFloat16>(to);
    case at::ScalarType::Bool:
    case at::ScalarType::Byte:
      return convert_to<uint8_t>(to);
    case at::ScalarType::Char:
      return convert_to<int8_t>(to);
    case at::ScalarType::Short:
      return convert_to<int16_t>(to);
    case at::ScalarType::UInt16:
      return convert_to<uint16_t>(to);
    case at::ScalarType::Int:
      return convert_to<int32_t>(to);
    case at::ScalarType::UInt32:
      return convert_to<uint32_t>(to);
    case at::ScalarType::Long:
      return convert_to<int64_t>(to);
    case at::ScalarType::UInt64:
      return convert_to<uint64_t>(to);
    default:
      return nullptr;
  }
}

}  // namespace tetra
