#pragma once
// What a rank's tensors will take, before anything runs.

#include <cstdint>

#include "models/causal_lm.h"
#include "train/config.h"

namespace tetra {

/// Bytes of one rank. State and activations by formula (see docs/performance.md); `working` is the busiest moment of a
/// micro-batch above them: units whose values or gradients are whole, logits, gradients on their way back.
struct MemoryEstimate {
  int64_t values = 0;       // parameters in the compute type that stay
  int64_t masters = 0;      // where they are not the values themselves
  int64_t optimizer = 0;    // moments
  int64_t gradients = 0;    // kept from one micro-batch to the next
  int64_t activations = 0;  // that the layers keep for backward
  int64_t working = 0;

  int64_t state() const { return values + masters + optimizer + gradients; }
  int64_t peak() const { return state() + activations + working; }
};

/// Of `model`, whose parameters need no memory yet, trained as `config` says. Padding of shards is counted.
MemoryEstimate estimate_memory(const Config& config, CausalLM& model);

}  // namespace tetra
