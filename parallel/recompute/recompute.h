#pragma once
// Activations that are made again in backward instead of kept: whole segments, and single tensors that are cheap.

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

namespace tetra {

struct RecomputeOptions {
  bool input_in_host_memory = false;  // keep the input in (pinned) host memory; on the CPU it stays where it is
};

/// segment(input), of which just the input is kept: backward runs the segment again, with autograd, and goes back
/// through it (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Any shapes; floating types.
///
/// Tensors that the segment holds, its parameters, get their gradients in `grad` as in a plain run, and their hooks run
/// once a backward; a parameter that is used outside of the segment too gets two parts of its gradient, one after the
/// other. The segment has to do the same both times: random draws from a counter do, libtorch's generators do not, and
/// the collectives in it run again, in backward's order. Without gradients this is segment(input) and nothing else.
///
/// Backward throws Error for gradients of gradients, and libtorch's own error where the input was written over in
/// between; what the segment throws passes through.
at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> segment, const at::Tensor& input,
                     RecomputeOptions options = {});

/// A tensor whose memory is given back after its consumers' forward, and made again just before their backward, into
/// the memory's old place, which is what they have saved (the output-discarding recompute of Megatron-Core). Meant for
/// what is large and cheap and not needed by its own backward: a norm's or an activation's output.
///
///   at::Tensor y = rms_norm(x, w, eps);
///   DiscardedOutput kept(y, [=] { return rms_norm(x, w, eps); });
///   at::Tensor z = linear(y, v);
///   kept.discard();                // y must not be read any more
///   z = kept.restore_for(z);       // for each output of each consumer; any order with discard()
class DiscardedOutput {
 public:
  /// `output`: just made, not consumed yet, and alone in its memory; Error where the memory is larger (`output` is a
  /// view) or somebody else has it. `make` returns the same values again, to the bit: new memory is taken over, what
  /// others hold is copied. It runs without autograd and must not hold `output`. `kept_by_maker`: the operation that
  /// made it has saved it for its own backward, which comes after the consumers' (attention's output).
  DiscardedOutput(const at::Tensor& output, std::function<at::Tensor()> make, bool kept_by_maker = false);

  /// Frees the memory. Once is enough; nothing happens where all who had the tensor are gone.
  void discard();

  /// The same tensor; on its way back the gradient stops to have the discarded one made, if that is not done yet. Each
  /// output that a gradient comes back through alone needs it: a consumer that was left out would read no memory.
  at::Tensor restore_for(const at::Tensor& consumer_output) const;

 private:
  struct Memory;
  class Restore;
  std::shared_ptr<Memory> memory_;
};

}  // namespace tetra
