#pragma once
// Flash attention (Dao et al., 2022) over small matrix products: scores of 64 queries by up to 256 keys stay in cache
// and in float, whatever the inputs' type.

#include <algorithm>

#include "kernels/cpu/vector_math.h"

namespace tetra::cpu {
namespace {

constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 256;

inline int64_t round_up(int64_t x) {
  return (x + 15) / 16 * 16;
}

/// Hands out parts of the scratch, each a whole number of cache lines.
class Scratch {
 public:
  explicit Scratch(float* begin) : begin_(begin), next_(begin) {}
  template <typename T>
  T* take(int64_t count) {
    T* part = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 16;
    return part;
  }
  int64_t used() const { return next_ - begin_; }

 private:
  float* begin_;
  float* next_;
};

template <typename T>
constexpr bool kPairs = sizeof(T) == 2;

/// Two 16-bit elements in one word, the first in memory order.
inline uint32_t pair_of(uint16_t first, uint16_t second) {
  return std::endian::native == std::endian::little ? first | static_cast<uint32_t>(second) << 16
                                                    : second | static_cast<uint32_t>(first) << 16;
}

/// A right operand [rows, columns] with ld = columns, from rows `stride` apart; zeros from `valid` rows on.
inline void pack_rows(const float* in, int64_t stride, int64_t valid, int64_t rows, int64_t columns, float* out) {
  for (int64_t row = 0; row < valid; ++row) {
    std::copy_n(in + row * stride, columns, out + row * columns);
  }
  std::fill(out + valid * columns, out + rows * columns, 0.0f);
}
inline void pack_rows(const Bf16* in, int64_t stride, int64_t valid, int64_t rows, int64_t columns, Bf16* out) {
  uint32_t* to = reinterpret_cast<uint32_t*>(out);
  int64_t row = 0;
  for (; row + 1 < valid; row += 2, to += columns) {
    const Bf16 *a = in + row * stride, *b = a + stride;
    TETRA_SIMD
    for (int64_t i = 0; i < columns; ++i) {
      to[i] = pair_of(a[i].bits, b[i].bits);
    }
  }
  for (; row < rows; row += 2, to += columns) {
    const Bf16* a = in + row * stride;
    for (int64_t i = 0; i < columns; ++i) {
      to[i] = row < valid ? pair_of(a[i].bits, 0) : 0;
    }
  }
}

/// A right operand [depth, columns]: the transpose of `valid` rows of `depth` elements, zeros beyond.
inline void pack_transposed(const float* in, int64_t stride, int64_t valid, int64_t columns, int64_t depth,
                            float* out) {
  if (valid < columns) {
    std::fill(out, out + columns * depth, 0.0f);
  }
  for (int64_t n = 0; n < valid; ++n) {
    for (int64_t d = 0; d < depth; ++d) {
      out[d * columns + n] = in[n * stride + d];
    }
  }
}
inline void pack_transposed(const Bf16* in, int64_t stride, int64_t valid, int64_t columns, int64_t depth, Bf16* out) {
  uint32_t* to = reinterpret_cast<uint32_t*>(out);
  if (valid < columns) {
    std::fill(to, to + columns * depth / 2, 0u);
  }
  for (int64_t n = 0; n < valid; ++n) {
    const Bf16* from = in + n * stride;
    for (int64_t d = 0; d < depth / 2; ++d) {
      to[d * columns + n] = pair_of(from[2 * d].bits, from[2 * d + 1].bits);
    }
  }
}

/// A left operand [depth, columns]: the plain transpose, zeros beyond `valid`.
template <typename T>
void transpose(const T* in, int64_t stride, int64_t valid, int64_t columns, int64_t depth, T* out) {
  if (valid < columns) {
    std::fill(out, out + columns * depth, T{});
  }
  for (int64_t n = 0; n < valid; ++n) {
    for (int64_t d = 0; d < depth; ++d) {
      out[d * columns + n] = in[n * stride + d];
    }
  }
}

/// One row of scores to unnormalised probabilities, zero from `visible` on; updates the row's running maximum and sum,
/// and returns the factor by which earlier blocks' results shrink. Hidden scores are computed and dropped, so that
/// rows are whole vectors.
template <typename T>
float softmax_block(const float* scores, int64_t visible, int64_t width, float scale, float& max, float& sum, T* p) {
  const int32_t end = static_cast<int32_t>(visible);
  const float block_max = max_lanes(width, max, [=](int64_t i) {
    return static_cast<int32_t>(i) < end ? scores[i] * scale : -std::numeric_limits<float>::infinity();
  });
  const float block_sum = sum_lanes<float>(width, [=](int64_t i) {
    const float e = fast_exp(scores[i] * scale - block_max);
    const float shown = static_cast<int32_t>(i) < end ? e : 0.0f;
    p[i] = narrow<T>(shown);
    return shown;
  });
  const float shrink = max == block_max ? 1.0f : fast_exp(max - block_max);
  sum = sum * shrink + block_sum;
  max = block_max;
  return shrink;
}

template <typename T>
struct ForwardScratch {
  T *k_transposed, *v, *p;
  float *scores, *out;
  int64_t used;
  ForwardScratch(const AttentionArgs<T>& a, float* memory) {
    const int64_t keys = round_up(a.keys);
    Scratch scratch(memory);
    k_transposed = scratch.take<T>(keys * a.dim);
    v = scratch.take<T>(keys * a.dim);
    p = scratch.take<T>(kQueryBlock * kKeyBlock);
    scores = scratch.take<float>(kQueryBlock * kKeyBlock);
    out = scratch.take<float>(kQueryBlock * a.dim);
    used = scratch.used();
  }
};

template <typename T>
void forward_block(const AttentionArgs<T>& a, const ForwardScratch<T>& s, int64_t batch, int64_t head, int64_t q0) {
  const int64_t rows = std::min(kQueryBlock, a.queries - q0);
  const int64_t key_end = a.causal ? q0 + rows : a.keys;
  const int64_t packed_keys = round_up(a.keys);
  float max[kQueryBlock], sum[kQueryBlock];
  std::fill(max, max + kQueryBlock, -std::numeric_limits<float>::infinity());
  std::fill(sum, sum + kQueryBlock, 0.0f);
  for (int64_t k0 = 0; k0 < key_end; k0 += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, key_end - k0), width = round_up(keys);
    a.product(rows, width, a.dim, a.q.row_stride, packed_keys, kKeyBlock, false, a.q.at(batch, q0, head),
              s.k_transposed + k0 * (kPairs<T> ? 2 : 1), s.scores);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t visible = a.causal ? std::clamp<int64_t>(q0 + row + 1 - k0, 0, keys) : keys;
      const float shrink =
          softmax_block(s.scores + row * kKeyBlock, visible, width, a.scale, max[row], sum[row], s.p + row * kKeyBlock);
      if (k0 > 0 && shrink != 1.0f) {
        float* out = s.out + row * a.dim;
        TETRA_SIMD
        for (int64_t i = 0; i < a.dim; ++i) {
          out[i] *= shrink;
        }
      }
    }
    a.product(rows, a.dim, width, kKeyBlock, a.dim, a.dim, k0 > 0, s.p, s.v + k0 * a.dim, s.out);
  }
  float* lse = a.lse + (batch * a.heads + head) * a.queries + q0;
  for (int64_t row = 0; row < rows; ++row) {
    const float factor = 1.0f / sum[row];
    const float* from = s.out + row * a.dim;
    T* to = a.out.at(batch, q0 + row, head);
    TETRA_SIMD
    for (int64_t i = 0; i < a.dim; ++i) {
      to[i] = narrow<T>(from[i] * factor);
    }
    lse[row] = max[row] + std::log(sum[row]);
  }
}

template <typename T>
int64_t attention_forward_scratch(const AttentionArgs<T>& a) {
  return ForwardScratch<T>(a, nullptr).used;
}

template <typename T>
void attention_forward(const AttentionArgs<T>& a, int64_t batch, int64_t kv_head, float* memory) {
  const ForwardScratch<T> s(a, memory);
  const int64_t keys = round_up(a.keys), shared = a.heads / a.kv_heads;
  pack_transposed(a.k.at(batch, 0, kv_head), a.k.row_stride, a.keys, keys, a.dim, s.k_transposed);
  pack_rows(a.v.at(batch, 0, kv_head), a.v.row_stride, a.keys, keys, a.dim, s.v);
  for (int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
    for (int64_t q0 = 0; q0 < a.queries; q0 += kQueryBlock) {
      forward_block(a, s, batch, head, q0);
    }
  }
}

// Backward works on transposed blocks, [keys, queries]: then each of its five products finds its left operand in memory
// as it is, and what has to be packed is 64 rows at a time.
template <typename T>
struct BackwardScratch {
  T *k_transposed, *q_transposed, *q, *grad_transposed, *grad, *p, *ds, *ds_packed;
  float *scores, *dp, *grad_k, *grad_v, *grad_q_transposed;
  int64_t used;
  BackwardScratch(const AttentionArgs<T>& a, float* memory) {
    const int64_t keys = round_up(a.keys);
    Scratch scratch(memory);
    k_transposed = scratch.take<T>(keys * a.dim);
    q_transposed = scratch.take<T>(kQueryBlock * a.dim);
    q = scratch.take<T>(kQueryBlock * a.dim);
    grad_transposed = scratch.take<T>(kQueryBlock * a.dim);
    grad = scratch.take<T>(kQueryBlock * a.dim);
    p = scratch.take<T>(kKeyBlock * kQueryBlock);
    ds = scratch.take<T>(kKeyBlock * kQueryBlock);
    ds_packed = scratch.take<T>(kKeyBlock * kQueryBlock);
    scores = scratch.take<float>(kKeyBlock * kQueryBlock);
    dp = scratch.take<float>(kKeyBlock * kQueryBlock);
    grad_k = scratch.take<float>(a.keys * a.dim);
    grad_v = scratch.take<float>(a.keys * a.dim);
    grad_q_transposed = scratch.take<float>(a.dim * kQueryBlock);
    used = scratch.used();
  }
};

/// Per query: its log-sum-exp and the dot product of output and output gradient; padding gives probability 0.
template <typename T>
void row_statistics(const AttentionArgs<T>& a, int64_t batch, int64_t head, int64_t q0, int64_t rows, float* lse,
                    float* delta) {
  std::fill(lse, lse + kQueryBlock, std::numeric_limits<float>::infinity());
  std::fill(delta, delta + kQueryBlock, 0.0f);
  for (int64_t row = 0; row < rows; ++row) {
    const T* out = a.saved_out.at(batch, q0 + row, head);
    const T* grad = a.grad_out.at(batch, q0 + row, head);
    delta[row] = sum_lanes<float>(a.dim, [=](int64_t i) { return widen(out[i]) * widen(grad[i]); });
    lse[row] = a.lse[(batch * a.heads + head) * a.queries + q0 + row];
  }
}

/// Probabilities and score gradients of one key for all queries of the block. `first` is the first query that sees it.
template <typename T>
void key_row(const float* scores, const float* dp, const float* lse, const float* delta, float scale, int64_t first,
             int64_t width, T* p, T* ds) {
  const int32_t begin = static_cast<int32_t>(first), end = static_cast<int32_t>(width);
  TETRA_SIMD
  for (int32_t i = 0; i < end; ++i) {
    const float e = fast_exp(scores[i] * scale - lse[i]);
    const float probability = i >= begin ? e : 0.0f;
    p[i] = narrow<T>(probability);
    ds[i] = narrow<T>(probability * (dp[i] - delta[i]) * scale);
  }
}

template <typename T>
void backward_keys(const AttentionArgs<T>& a, const BackwardScratch<T>& s, int64_t batch, int64_t kv_head, int64_t q0,
                   int64_t k0, int64_t keys, int64_t width, const float* lse, const float* delta) {
  const int64_t padded = round_up(keys);
  a.product(keys, width, a.dim, a.k.row_stride, width, width, false, a.k.at(batch, k0, kv_head), s.q_transposed,
            s.scores);
  a.product(keys, width, a.dim, a.v.row_stride, width, width, false, a.v.at(batch, k0, kv_head), s.grad_transposed,
            s.dp);
  for (int64_t key = 0; key < keys; ++key) {
    const int64_t first = a.causal ? k0 + key - q0 : 0, at = key * width;
    key_row(s.scores + at, s.dp + at, lse, delta, a.scale, first, width, s.p + at, s.ds + at);
  }
  a.product(keys, a.dim, width, width, a.dim, a.dim, true, s.p, s.grad, s.grad_v + k0 * a.dim);
  a.product(keys, a.dim, width, width, a.dim, a.dim, true, s.ds, s.q, s.grad_k + k0 * a.dim);
  const T* ds = s.ds;
  if constexpr (kPairs<T>) {
    pack_rows(s.ds, width, keys, padded, width, s.ds_packed);
    ds = s.ds_packed;
  }
  a.product(a.dim, width, kPairs<T> ? padded : keys, round_up(a.keys), width, width, k0 > 0, s.k_transposed + k0, ds,
            s.grad_q_transposed);
}

template <typename T>
void backward_block(const AttentionArgs<T>& a, const BackwardScratch<T>& s, int64_t batch, int64_t kv_head,
                    int64_t head, int64_t q0) {
  const int64_t rows = std::min(kQueryBlock, a.queries - q0), width = round_up(rows);
  const int64_t key_end = a.causal ? q0 + rows : a.keys;
  float lse[kQueryBlock], delta[kQueryBlock];
  row_statistics(a, batch, head, q0, rows, lse, delta);
  const T* q = a.q.at(batch, q0, head);
  const T* grad = a.grad_out.at(batch, q0, head);
  pack_transposed(q, a.q.row_stride, rows, width, a.dim, s.q_transposed);
  pack_rows(q, a.q.row_stride, rows, width, a.dim, s.q);
  pack_transposed(grad, a.grad_out.row_stride, rows, width, a.dim, s.grad_transposed);
  pack_rows(grad, a.grad_out.row_stride, rows, width, a.dim, s.grad);
  for (int64_t k0 = 0; k0 < key_end; k0 += kKeyBlock) {
    backward_keys(a, s, batch, kv_head, q0, k0, std::min(kKeyBlock, key_end - k0), width, lse, delta);
  }
  T* to = a.grad_q.at(batch, q0, head);
  for (int64_t i = 0; i < a.dim; ++i) {
    for (int64_t row = 0; row < rows; ++row) {
      to[row * a.grad_q.row_stride + i] = narrow<T>(s.grad_q_transposed[i * width + row]);
    }
  }
}

template <typename T>
int64_t attention_backward_scratch(const AttentionArgs<T>& a) {
  return BackwardScratch<T>(a, nullptr).used;
}

template <typename T>
void attention_backward(const AttentionArgs<T>& a, int64_t batch, int64_t kv_head, float* memory) {
  const BackwardScratch<T> s(a, memory);
  const int64_t shared = a.heads / a.kv_heads;
  transpose(a.k.at(batch, 0, kv_head), a.k.row_stride, a.keys, round_up(a.keys), a.dim, s.k_transposed);
  std::fill(s.grad_k, s.grad_k + a.keys * a.dim, 0.0f);
  std::fill(s.grad_v, s.grad_v + a.keys * a.dim, 0.0f);
  for (int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
    for (int64_t q0 = 0; q0 < a.queries; q0 += kQueryBlock) {
      backward_block(a, s, batch, kv_head, head, q0);
    }
  }
  for (int64_t key = 0; key < a.keys; ++key) {
    T* k = a.grad_k.at(batch, key, kv_head);
    T* v = a.grad_v.at(batch, key, kv_head);
    TETRA_SIMD
    for (int64_t i = 0; i < a.dim; ++i) {
      k[i] = narrow<T>(s.grad_k[key * a.dim + i]);
      v[i] = narrow<T>(s.grad_v[key * a.dim + i]);
    }
  }
}

}  // namespace
}  // namespace tetra::cpu
