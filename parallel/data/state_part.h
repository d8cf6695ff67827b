#pragma once
// What one rank holds of one global tensor, as checkpoints and state dictionaries see it.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tetra {

/// A box of a global tensor. A rank's part of a parameter may be several boxes; over all ranks that save, the boxes of
/// one name tile the global tensor exactly.
struct StatePart {
  std::string name;                   // "weights/model.norm.weight", "exp_avg/model.norm.weight"
  std::vector<int64_t> global_shape;  // empty for a scalar
  std::vector<int64_t> offsets;       // of the box in the global tensor
  at::Tensor data;                    // its sizes are the box's; a strided view of the rank's own memory
};

}  // namespace tetra
