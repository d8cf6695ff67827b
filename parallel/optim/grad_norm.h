#pragma once
// The norm of all gradients, each distinct parameter element counted once whatever the layout.

#include "parallel/parameter.h"

namespace tetra {

class Group;

/// L2 norm of the main gradients over the whole model, the same on every rank. Collective over `tp`.
double global_grad_norm(const ParameterSet& parameters, const Group& tp);

/// The factor that clips a norm: max_norm / (norm + 1e-6), at most 1 (as torch.nn.utils.clip_grad_norm_).
double clip_factor(double norm, double max_norm);

}  // namespace tetra
