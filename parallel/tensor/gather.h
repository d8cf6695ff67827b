#pragma once
// A whole tensor from the parts that tp ranks hold.

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "parallel/tensor/cut.h"

namespace tetra {

class Group;

/// `local`: this rank's part of a tensor that is cut as `cut` says, any floating type. Gives the whole on the CPU to
/// ranks that pass `wanted`, nothing to the others. Collective over tp, whatever is wanted.
std::optional<at::Tensor> gather_whole(const at::Tensor& local, const TpCut& cut, const Group& tp, bool wanted,
                                       const std::string& site);

}  // namespace tetra
