#pragma once
// The norm of all gradients, each distinct parameter element counted once whatever the layout; clipping.

#include "parallel/data/model_state.h"

namespace tetra {

/// L2 norm of the gradient shards over the whole model, the same on every rank; not finite on every rank when any
/// element is not. Collective over the shard and tp groups.
double global_grad_norm(const ModelState& state);

/// The factor that clips a norm: max_norm / (norm + 1e-6), at most 1 (as torch.nn.utils.clip_grad_norm_).
double clip_factor(double norm, double max_norm);

/// Clamps every gradient element to [-limit, limit] (as torch.nn.utils.clip_grad_value_).
void clip_grad_value(ModelState& state, double limit);

}  // namespace tetra
