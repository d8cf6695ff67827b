// RMSNorm over the last dim, one block a row. T = tokens, H = features. See rms_norm.h.

#include <cuda_bf16.h>

#include "cuda/rms_norm.h"

namespace tetra::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kPartialRows = 512;
constexpr int64_t kColumnTile = 32;
constexpr size_t kSharedLimit = 48 << 10;  // what every GPU grants without asking

__device__ float to_float(float value) {
  return value;
}
__device__ float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <typename T>
__device__ T from_float(float value);
template <>
__device__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// kWidth neighbours that are loaded and stored as one word.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T value[kWidth];
};

/// The sum over the block's threads, on all of them, always in the same order.
__device__ float block_sum(float value) {
  __shared__ float warp_sums[kWarps];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  __syncthreads();  // the sums of an earlier call have been read
  if (threadIdx.x % 32 == 0) {
    warp_sums[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    total += warp_sums[warp];
  }
  return total;
}

template <typename T, int kWidth>
__global__ void rms_norm_kernel(const T* x, const T* weight, T* y, int64_t features, float eps) {
  using P = Pack<T, kWidth>;
  const int64_t packs = features / kWidth;
  const P* x_row = reinterpret_cast<const P*>(x + blockIdx.x * features);
  const P* weights = reinterpret_cast<const P*>(weight);
  P* y_row = reinterpret_cast<P*>(y + blockIdx.x * features);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    const P in = x_row[i];
    for (int k = 0; k < kWidth; ++k) {
      squares += to_float(in.value[k]) * to_float(in.value[k]);
    }
  }
  const float inverse_rms = rsqrtf(block_sum(squares) / features + eps);
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    const P in = x_row[i];
    const P w = weights[i];
    P out;
    for (int k = 0; k < kWidth; ++k) {
      const float normed = to_float(from_float<T>(to_float(in.value[k]) * inverse_rms));
      out.value[k] = from_float<T>(normed * to_float(w.value[k]));
    }
    y_row[i] = out;
  }
}

/// Each block takes rows blockIdx.x, blockIdx.x + gridDim.x, ... and sums up the weight's gradient over them: in shared
/// memory where a row fits, else in its row of `partial`. Each thread keeps to its own columns, so nothing is atomic.
template <typename T, int kWidth>
__global__ void rms_norm_backward_kernel(const T* grad, const T* x, const T* weight, T* grad_x, float* partial,
                                         int64_t tokens, int64_t features, float eps, bool use_shared) {
  using P = Pack<T, kWidth>;
  extern __shared__ float shared_sums[];
  const int64_t packs = features / kWidth;
  const P* weights = reinterpret_cast<const P*>(weight);
  float* const out_sums = partial + blockIdx.x * features;
  float* const sums = use_shared ? shared_sums : out_sums;
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    for (int k = 0; k < kWidth; ++k) {
      sums[i * kWidth + k] = 0;
    }
  }
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    const P* x_row = reinterpret_cast<const P*>(x + t * features);
    const P* grad_row = reinterpret_cast<const P*>(grad + t * features);
    P* out_row = reinterpret_cast<P*>(grad_x + t * features);
    float squares = 0;
    float dot = 0;  // sum of grad * weight * x
    for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
      const P in = x_row[i];
      const P g = grad_row[i];
      const P w = weights[i];
      for (int k = 0; k < kWidth; ++k) {
        const float value = to_float(in.value[k]);
        squares += value * value;
        dot += to_float(g.value[k]) * to_float(w.value[k]) * value;
      }
    }
    const float inverse_rms = rsqrtf(block_sum(squares) / features + eps);
    const float slope = block_sum(dot) * inverse_rms * inverse_rms * inverse_rms / features;
    for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
      const P in = x_row[i];
      const P g = grad_row[i];
      const P w = weights[i];
      P out;
      for (int k = 0; k < kWidth; ++k) {
        const float value = to_float(in.value[k]);
        const float g_value = to_float(g.value[k]);
        out.value[k] = from_float<T>(g_value * to_float(w.value[k]) * inverse_rms - value * slope);
        sums[i * kWidth + k] += g_value * to_float(from_float<T>(value * inverse_rms));
      }
      out_row[i] = out;
    }
  }
  for (int64_t i = threadIdx.x; use_shared && i < packs; i += kThreads) {
    for (int k = 0; k < kWidth; ++k) {
      out_sums[i * kWidth + k] = sums[i * kWidth + k];
    }
  }
}

/// grad_weight[h] = sum over rows of partial [rows, H]. A block of kColumnTile x 8 threads takes kColumnTile columns.
template <typename T>
__global__ void sum_rows_kernel(const float* partial, T* grad_weight, int64_t rows, int64_t features) {
  __shared__ float sums[kWarps][kColumnTile];
  const int64_t column = blockIdx.x * kColumnTile + threadIdx.x;
  float sum = 0;
  for (int64_t row = threadIdx.y; column < features && row < rows; row += kWarps) {
    sum += partial[row * features + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < features) {
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      total += sums[warp][threadIdx.x];
    }
    grad_weight[column] = from_float<T>(total);
  }
}

template <typename T, int kWidth>
cudaError_t forward(const void* x, const void* weight, void* y, const RmsNormShape& shape, cudaStream_t stream) {
  rms_norm_kernel<T, kWidth><<<static_cast<unsigned>(shape.tokens), kThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(y), shape.features, shape.eps);
  return cudaGetLastError();
}

template <typename T, int kWidth>
cudaError_t backward(const void* grad, const void* x, const void* weight, void* grad_x, void* grad_weight,
                     float* partial, const RmsNormShape& shape, cudaStream_t stream) {
  const int64_t rows = rms_norm_partial_rows(shape.tokens);
  const size_t row_bytes = shape.features * sizeof(float);
  const bool use_shared = row_bytes <= kSharedLimit - sizeof(float) * kWarps;
  rms_norm_backward_kernel<T, kWidth><<<static_cast<unsigned>(rows), kThreads, use_shared ? row_bytes : 0, stream>>>(
      static_cast<const T*>(grad), static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(grad_x),
      partial, shape.tokens, shape.features, shape.eps, use_shared);
  const auto blocks = static_cast<unsigned>((shape.features + kColumnTile - 1) / kColumnTile);
  sum_rows_kernel<T>
      <<<blocks, dim3(kColumnTile, kWarps), 0, stream>>>(partial, static_cast<T*>(grad_weight), rows, shape.features);
  return cudaGetLastError();
}

/// Packs of four where every row begins at a multiple of them.
bool packs_fit(const RmsNormShape& shape, std::initializer_list<const void*> pointers) {
  const size_t bytes = 4 * (shape.element == Element::fp32 ? 4 : 2);
  bool fit = shape.features % 4 == 0;
  for (const void* pointer : pointers) {
    fit = fit && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
  }
  return fit;
}

}  // namespace

int64_t rms_norm_partial_rows(int64_t tokens) {
  return tokens < kPartialRows ? tokens : kPartialRows;
}

cudaError_t launch_rms_norm(const void* x, const void* weight, void* y, const RmsNormShape& shape,
                            cudaStream_t stream) {
  const bool packed = packs_fit(shape, {x, weight, y});
  if (shape.element == Element::fp32) {
    return packed ? forward<float, 4>(x, weight, y, shape, stream) : forward<float, 1>(x, weight, y, shape, stream);
  }
  return packed ? forward<__nv_bfloat16, 4>(x, weight, y, shape, stream)
                : forward<__nv_bfloat16, 1>(x, weight, y, shape, stream);
}

cudaError_t launch_rms_norm_backward(const void* grad, const void* x, const void* weight, void* grad_x,
                                     void* grad_weight, float* partial, const RmsNormShape& shape,
                                     cudaStream_t stream) {
  const bool packed = packs_fit(shape, {grad, x, weight, grad_x});
  const auto launch = shape.element == Element::fp32
                          ? (packed ? backward<float, 4> : backward<float, 1>)
                          : (packed ? backward<__nv_bfloat16, 4> : backward<__nv_bfloat16, 1>);
  return launch(grad, x, weight, grad_x, grad_weight, partial, shape, stream);
}

}  // namespace tetra::cuda
