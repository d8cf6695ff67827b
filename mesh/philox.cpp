#include "mesh/philox.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "kernels/error.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TETRA_HAS_AVX2 1
#endif
#define TETRA_INLINE inline __attribute__((always_inline))

namespace tetra {
namespace {

// Counters drawn at a time: every loop below runs over a whole batch with the same instructions, so a value cannot
// depend on where in a tensor or a slice the loop started.
constexpr int kBatch = 256;

struct Batch {
  uint32_t low[kBatch];  // counter words 0 and 1: global element index / 4
  uint32_t high[kBatch];
  uint32_t words[4][kBatch];  // the drawn bits
  float values[4][kBatch];    // the draws of elements 4*counter + {0, 1, 2, 3}
  float scratch[2][kBatch];
};

struct Seeded {
  std::array<uint32_t, 2> key;
  uint32_t step_low;
  uint32_t step_high;
};

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Seeded seeded(const RandomStream& stream) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (char c : stream.name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  const uint64_t key = mix(mix(hash) ^ stream.seed);
  return {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
          static_cast<uint32_t>(stream.step),
          static_cast<uint32_t>(stream.step >> 32)};
}

struct Words {
  uint32_t a, b, c, d;
};

template <int round = 0>
TETRA_INLINE Words philox_rounds(Words w, uint32_t k0, uint32_t k1) {
  if constexpr (round == 10) {
    return w;
  } else {
    const uint64_t p0 = uint64_t{0xD2511F53u} * w.a;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * w.c;
    const Words next = {static_cast<uint32_t>(p1 >> 32) ^ w.b ^ k0, static_cast<uint32_t>(p1),
                        static_cast<uint32_t>(p0 >> 32) ^ w.d ^ k1, static_cast<uint32_t>(p0)};
    return philox_rounds<round + 1>(next, k0 + 0x9E3779B9u, k1 + 0xBB67AE85u);
  }
}

TETRA_INLINE void draw_words(Batch& batch, const Seeded& s) {
  for (int i = 0; i < kBatch; ++i) {
    const Words w = philox_rounds({batch.low[i], batch.high[i], s.step_low, s.step_high}, s.key[0], s.key[1]);
    batch.words[0][i] = w.a;
    batch.words[1][i] = w.b;
    batch.words[2][i] = w.c;
    batch.words[3][i] = w.d;
  }
}

// -2 ln(u) for u = (word + 1/2) / 2^32. Mantissa in [sqrt(1/2), sqrt(2)), ln(1+x) = 2 atanh(x / (2+x)) as a series.
TETRA_INLINE float minus_two_log(uint32_t word) {
  const float high = static_cast<float>(static_cast<int32_t>(word >> 16)) * 65536.0f;
  const float u = high + (static_cast<float>(static_cast<int32_t>(word & 0xffffu)) + 0.5f);  // times 2^32
  uint32_t bits;
  std::memcpy(&bits, &u, sizeof bits);
  const uint32_t shifted = bits - 0x3f3504f3u;  // exponent counts from sqrt(1/2)
  const auto exponent = static_cast<int32_t>(shifted) >> 23;
  const uint32_t mantissa_bits = (shifted & 0x007fffffu) + 0x3f3504f3u;
  float mantissa;
  std::memcpy(&mantissa, &mantissa_bits, sizeof mantissa);
  const float x = mantissa - 1.0f;
  const float t = x / (2.0f + x);
  const float t2 = t * t;
  const float series = 2.0f + t2 * (0.66666667f + t2 * (0.4f + t2 * (0.28571429f + t2 * 0.22222222f)));
  return -2.0f * (t * series + static_cast<float>(exponent - 32) * 0.69314718f);
}

struct Turn {
  float cosine, sine;
};

// Cosine and sine of 2 pi word / 2^32: quarter turn plus an angle within [-pi/4, pi/4], Taylor series of that.
TETRA_INLINE Turn turn(uint32_t word) {
  const uint32_t quarter = (word + 0x20000000u) >> 30;
  const auto rest = static_cast<int32_t>(word - (quarter << 30));
  const float a = static_cast<float>(rest) * 1.4629180792671596e-9f;  // 2 pi / 2^32
  const float a2 = a * a;
  const float s =
      a * (1.0f + a2 * (-1.6666667e-1f + a2 * (8.3333333e-3f + a2 * (-1.9841270e-4f + a2 * 2.7557319e-6f))));
  const float c = 1.0f + a2 * (-0.5f + a2 * (4.1666667e-2f + a2 * (-1.3888889e-3f + a2 * 2.4801587e-5f)));
  const bool swap = (quarter & 1u) != 0;
  const float sine = swap ? c : s;
  const float cosine = swap ? s : c;
  return {((quarter + 1u) & 2u) != 0 ? -cosine : cosine, (quarter & 2u) != 0 ? -sine : sine};
}

TETRA_INLINE void square_roots(float* values) {
  int i = 0;
#ifdef TETRA_HAS_AVX2  // std::sqrt may set errno, which keeps gcc from vectorising; the rounding is the same
  for (; i < kBatch; i += 4) {
    _mm_storeu_ps(values + i, _mm_sqrt_ps(_mm_loadu_ps(values + i)));
  }
#endif
  for (; i < kBatch; ++i) {
    values[i] = std::sqrt(values[i]);
  }
}

// Box-Muller: words 0 and 1 give elements 0 and 1, words 2 and 3 give elements 2 and 3.
TETRA_INLINE void draw_normal(Batch& batch, float std) {
  for (int pair = 0; pair < 2; ++pair) {
    float* radius = batch.scratch[pair];
    const uint32_t* first = batch.words[2 * pair];
    const uint32_t* second = batch.words[2 * pair + 1];
    for (int i = 0; i < kBatch; ++i) {
      radius[i] = minus_two_log(first[i]);
    }
    square_roots(radius);
    for (int i = 0; i < kBatch; ++i) {
      const Turn t = turn(second[i]);
      const float r = radius[i] * std;
      batch.values[2 * pair][i] = r * t.cosine;
      batch.values[2 * pair + 1][i] = r * t.sine;
    }
  }
}

// The highest `bits` bits, so that the value is exact in the target type and stays below 1.
TETRA_INLINE void draw_uniform(Batch& batch, int bits) {
  const float unit = 1.0f / static_cast<float>(1 << bits);
  for (int w = 0; w < 4; ++w) {
    for (int i = 0; i < kBatch; ++i) {
      batch.values[w][i] = static_cast<float>(static_cast<int32_t>(batch.words[w][i] >> (32 - bits))) * unit;
    }
  }
}

struct Law {
  bool normal;
  float std;
  int uniform_bits;
};

TETRA_INLINE void draw_inline(Batch& batch, const Seeded& s, const Law& law) {
  draw_words(batch, s);
  if (law.normal) {
    draw_normal(batch, law.std);
  } else {
    draw_uniform(batch, law.uniform_bits);
  }
}

#ifdef TETRA_HAS_AVX2
// Without fma on purpose: a fused product rounds once less and would give other values than machines without it.
__attribute__((target("avx2,no-fma"))) void draw_avx2(Batch& batch, const Seeded& s, const Law& law) {
  draw_inline(batch, s, law);
}
#endif

void draw(Batch& batch, const Seeded& s, const Law& law) {
#ifdef TETRA_HAS_AVX2
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) {
    return draw_avx2(batch, s, law);
  }
#endif
  draw_inline(batch, s, law);
}

// Neighbouring elements of a local tensor whose global indices are neighbours too, within one batch.
struct Piece {
  int64_t local;
  int64_t length;
  int batch_offset;  // in elements, 4 to a counter
};

// Walks over the local tensor in order and gives runs of neighbouring global indices.
class Runs {
 public:
  explicit Runs(const Slice& slice) : slice_(slice) {
    const std::vector<int64_t> shape = slice.local_shape();
    const auto dim = static_cast<size_t>(slice.dim);
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      inner_ *= shape[d];
    }
    local_size_ = shape.empty() ? 1 : shape[dim];
    global_size_ = shape.empty() ? 1 : slice.global_shape[dim];
  }

  /// Global index of local element `local`, and how many follow it without a gap.
  std::pair<int64_t, int64_t> at(int64_t local) const {
    if (local_size_ == global_size_ && slice_.is_whole()) {
      return {local, std::numeric_limits<int64_t>::max()};
    }
    const int64_t outer = local / (local_size_ * inner_);
    int64_t within = local % (local_size_ * inner_);
    for (const Range& range : slice_.ranges) {
      const int64_t length = range.size() * inner_;
      if (within < length) {
        return {(outer * global_size_ + range.begin) * inner_ + within, length - within};
      }
      within -= length;
    }
    fail("local index {} is beyond the slice", local);
  }

 private:
  const Slice& slice_;
  int64_t inner_ = 1;
  int64_t local_size_ = 1;
  int64_t global_size_ = 1;
};

template <typename T>
void copy_piece(T* to, const Batch& batch, const Piece& piece) {
  for (int64_t i = 0; i < piece.length; ++i) {
    const int64_t e = piece.batch_offset + i;
    to[piece.local + i] = static_cast<T>(batch.values[e & 3][e >> 2]);
  }
}

// A full batch of neighbours, the common case.
template <typename T>
void copy_whole(T* __restrict to, const Batch& batch) {
  for (int i = 0; i < kBatch; ++i) {
    for (int w = 0; w < 4; ++w) {
      to[4 * i + w] = static_cast<T>(batch.values[w][i]);
    }
  }
}

// Plans one batch from local element `local` on, written to where `origin` is the first: sets the counters and the
// pieces, returns the next element.
int64_t plan(Batch& batch, std::vector<Piece>& pieces, const Runs& runs, int64_t local, int64_t end, int64_t origin) {
  pieces.clear();
  int used = 0;
  while (local < end && used < kBatch) {
    const auto [global, run] = runs.at(local);
    const int64_t first = global / 4;
    const int64_t room = (first + (kBatch - used)) * 4 - global;
    const int64_t length = std::min({run, end - local, room});
    const int64_t last = (global + length - 1) / 4;
    pieces.push_back({local - origin, length, 4 * used + static_cast<int>(global % 4)});
    for (int64_t counter = first; counter <= last; ++counter, ++used) {
      batch.low[used] = static_cast<uint32_t>(counter);
      batch.high[used] = static_cast<uint32_t>(static_cast<uint64_t>(counter) >> 32);
    }
    local += length;
  }
  for (; used < kBatch; ++used) {  // drawn and thrown away
    batch.low[used] = 0;
    batch.high[used] = 0;
  }
  return local;
}

template <typename T>
void fill_part(T* to, const Runs& runs, const Seeded& s, const Law& law, int64_t begin, int64_t end) {
  const int64_t origin = begin;
  Batch batch;
  std::vector<Piece> pieces;
  while (begin < end) {
    begin = plan(batch, pieces, runs, begin, end, origin);
    draw(batch, s, law);
    if (pieces.size() == 1 && pieces.front().length == 4 * kBatch) {
      copy_whole(to + pieces.front().local, batch);
      continue;
    }
    for (const Piece& piece : pieces) {
      copy_piece(to, batch, piece);
    }
  }
}

// Own threads: at::parallel_for runs serially in code that is not compiled for OpenMP.
template <typename Part>
void share_out(int64_t count, const Part& part) {
  constexpr int64_t kGrain = 1 << 16;
  const int64_t threads = std::clamp<int64_t>(count / kGrain, 1, at::get_num_threads());
  std::vector<std::thread> helpers;
  for (int64_t t = 1; t < threads; ++t) {
    const Range range = even_range(count, threads, t);
    helpers.emplace_back([&part, range] { part(range.begin, range.end); });
  }
  part(0, even_range(count, threads, 0).end);
  for (std::thread& helper : helpers) {
    helper.join();
  }
}

void check_shape(const at::Tensor& local, const std::vector<int64_t>& shape, const RandomStream& stream) {
  require(local.defined() && local.sizes() == at::IntArrayRef(shape),
          "random stream '{}': the tensor has shape [{}], the slice has [{}]", stream.name,
          local.defined() ? fmt::format("{}", fmt::join(local.sizes().vec(), ", ")) : "undefined",
          fmt::join(shape, ", "));
}

void check_storage(const at::Tensor& local, int64_t numel, const RandomStream& stream) {
  require(local.defined() && local.numel() == numel && local.is_contiguous() && local.device().is_cpu(),
          "random stream '{}': the tensor must be contiguous, on the CPU, of {} elements", stream.name, numel);
}

/// Elements [flat.begin, flat.end) of the slice's local tensor.
void fill(at::Tensor& local, const Slice& slice, Range flat, const RandomStream& stream, Law law) {
  const Runs runs(slice);
  const Seeded s = seeded(stream);
  const auto fill_as = [&]<typename T>(T* to, int bits) {
    law.uniform_bits = bits;
    share_out(flat.size(), [&](int64_t begin, int64_t end) {
      fill_part<T>(to + begin, runs, s, law, flat.begin + begin, flat.begin + end);
    });
  };
  switch (local.scalar_type()) {
    case at::kFloat:
      return fill_as(static_cast<float*>(local.data_ptr()), 24);
    case at::kDouble:
      return fill_as(static_cast<double*>(local.data_ptr()), 24);
    case at::kBFloat16:
      return fill_as(static_cast<c10::BFloat16*>(local.data_ptr()), 8);
    case at::kHalf:
      return fill_as(static_cast<c10::Half*>(local.data_ptr()), 11);
    default:
      fail("random stream '{}': draws of type {} are not offered; use float, double, bfloat16 or half", stream.name,
           c10::toString(local.scalar_type()));
  }
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const Words w = philox_rounds({counter[0], counter[1], counter[2], counter[3]}, key[0], key[1]);
  return {w.a, w.b, w.c, w.d};
}

void fill_normal(at::Tensor& local, const Slice& slice, const RandomStream& stream, double std) {
  check_shape(local, slice.local_shape(), stream);
  fill_normal(local, slice, {0, local.numel()}, stream, std);
}

void fill_normal(at::Tensor& part, const Slice& slice, Range flat, const RandomStream& stream, double std) {
  check_storage(part, flat.size(), stream);
  fill(part, slice, flat, stream, {.normal = true, .std = static_cast<float>(std), .uniform_bits = 0});
}

void fill_uniform(at::Tensor& local, const Slice& slice, const RandomStream& stream) {
  check_shape(local, slice.local_shape(), stream);
  check_storage(local, local.numel(), stream);
  fill(local, slice, {0, local.numel()}, stream, {.normal = false, .std = 0.0f, .uniform_bits = 24});
}

uint64_t random_bits(const RandomStream& stream, uint64_t index) {
  const Seeded s = seeded(stream);
  const auto words =
      philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), s.step_low, s.step_high}, s.key);
  return words[0] | static_cast<uint64_t>(words[1]) << 32;
}

}  // namespace tetra
