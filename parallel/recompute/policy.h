#pragma once
// Which activations of a block are made again in backward.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "parallel/recompute/recompute.h"

namespace tetra {

enum class Recompute {
  none,
  selective,  // outputs of norms, activation and attention: a fraction of a block's work for about half its memory
  full,       // all but the block's input
};

/// "none", "selective" or "full"; anything else is an Error.
Recompute parse_recompute(const std::string& name);

struct RecomputePolicy {
  Recompute what = Recompute::none;
  int64_t layers = 0;           // how many, from the first; 0: all
  bool in_host_memory = false;  // what full recompute keeps

  Recompute of_layer(int64_t layer) const { return layers == 0 || layer < layers ? what : Recompute::none; }
};

/// consume(make()), where make's output is discarded in between if `discard`. `make` runs again in backward, without
/// autograd, and must not change what it captured. `kept_elsewhere`: make's own backward keeps its output too.
/// `consume` gives something with a `tensor`, or several.
template <typename Make, typename Consume>
auto discard_between(bool discard, const Make& make, const Consume& consume, bool kept_elsewhere = false) {
  at::Tensor made = make();
  if (!discard || !at::GradMode::is_enabled()) {
    return consume(made);
  }
  DiscardedOutput kept(made, make, kept_elsewhere);
  auto outputs = consume(std::exchange(made, at::Tensor()));
  kept.discard();
  if constexpr (requires { outputs.tensor; }) {
    outputs.tensor = kept.restore_for(outputs.tensor);
  } else {
    for (auto& output : outputs) {
      output.tensor = kept.restore_for(output.tensor);
    }
  }
  return outputs;
}

}  // namespace tetra
