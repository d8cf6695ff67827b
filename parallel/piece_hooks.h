#pragma once
// What happens around the pieces of a model while it runs.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tetra {

/// A model runs piece by piece: embedding, each block, head. Who keeps parameters elsewhere between uses brings them
/// in time.
class PieceHooks {
 public:
  virtual ~PieceHooks() = default;

  /// Before the forward of `piece`: its parameters must be there when this returns.
  virtual void before_forward(int64_t piece) = 0;

  /// After it. Gives back `output`, through which backward must pass on its way into the piece.
  virtual at::Tensor after_forward(int64_t piece, const at::Tensor& output) = 0;
};

}  // namespace tetra
