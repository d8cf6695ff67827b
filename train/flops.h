#pragma once
// How much arithmetic a model asks for, and how much the machine can do.

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "models/model_config.h"

namespace tetra {

/// Floating-point operations of one token's forward and backward at length `seq_len`: 6 per weight of every matrix
/// product, and causal attention's products (Chowdhery et al., "PaLM", 2022, appendix B, halved for the causal mask).
/// Recomputation is not counted.
double model_flops_per_token(const ModelConfig& config, int64_t seq_len);

/// Matrix-product peak of this machine in FLOP/s for `type` with the threads given, measured once (about 50 ms).
double measured_peak_flops(at::ScalarType type, int threads);

}  // namespace tetra
