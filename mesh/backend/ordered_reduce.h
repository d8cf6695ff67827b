#pragma once
// The arithmetic of every reduction between ranks, on CPU memory.

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mesh/collectives.h"

namespace tetra {

/// out[i] = reduction over r of inputs[r][i], in rank order, so that equal inputs give equal bits whoever adds them up.
/// bf16 and fp16 accumulate in fp32 and round once at the end. `out` may be one of the inputs, but may not overlap one
/// otherwise. A sum of bools is "any". NaN wins in max and min. Types: float, double, bf16, half, int8 to int64, uint8,
/// bool; others are an Error. Runs on the calling thread alone.
void ordered_reduce(void* out, const std::vector<const void*>& inputs, int64_t count, at::ScalarType type, ReduceOp op);

}  // namespace tetra
