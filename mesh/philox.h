#pragma once
// Counter-based random numbers: a draw depends on seed, stream name and GLOBAL element index alone, so no layout can
// change it. Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

#include <array>
#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "mesh/slice.h"

namespace tetra {

/// One Philox4x32-10 block.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A named stream of a seed: the pair is hashed into the key. `step` (say, the optimizer step) separates draws of
/// the same name.
struct RandomStream {
  uint64_t seed = 0;
  std::string_view name;
  uint64_t step = 0;
};

/// Fills `local` (contiguous CPU, floating point, shape slice.local_shape()) with normal draws N(0, std^2); element
/// values are those of the same global index in a tensor drawn whole. Drawn in float, then rounded to the dtype.
void fill_normal(at::Tensor& local, const Slice& slice, const RandomStream& stream, double std);

/// Just the elements [flat.begin, flat.end) of the slice's local tensor, counted row-major: `part` is flat.
void fill_normal(at::Tensor& part, const Slice& slice, Range flat, const RandomStream& stream, double std);

/// The same for uniform draws in [0, 1): the highest bits of the draw that the dtype holds exactly (24, bf16 8, half
/// 11).
void fill_uniform(at::Tensor& local, const Slice& slice, const RandomStream& stream);

/// Draws 64 uniform bits for global index `index`.
uint64_t random_bits(const RandomStream& stream, uint64_t index);

}  // namespace tetra
