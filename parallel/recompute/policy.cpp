#include "parallel/recompute/policy.h"

#include "kernels/error.h"

namespace tetra {

Recompute parse_recompute(const std::string& name) {
  if (name == "none") {
    return Recompute::none;
  }
  if (name == "selective") {
    return Recompute::selective;
  }
  require(name == "full", "train.recompute {} is not known; use none, selective or full", name);
  return Recompute::full;
}

}  // namespace tetra
