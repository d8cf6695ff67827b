#pragma once
// Column- and row-parallel linear layers (Shoeybi et al., "Megatron-LM", 2019).

#include <string>
#include <vector>

#include "kernels/linear.h"
#include "parallel/parameter.h"
#include "parallel/tensor/regions.h"

namespace tetra {

/// A weight and its bias, if it has one.
struct LinearParameters {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
};

/// Of a replicated parameter that acts on the stream: under sequence parallelism it sees just this rank's tokens.
inline TpGradient stream_gradient(const TensorParallel& tp) {
  return tp.cuts_tokens() ? TpGradient::partial : TpGradient::complete;
}

/// Weights cut along their output dim: Replicated [T, K] -> Varying [T, N_i/tp] for each of `layers`, which share x.
std::vector<Varying> column_parallel(const Replicated& x, const std::vector<LinearParameters>& layers,
                                     WeightLayout layout = WeightLayout::out_in);
Varying column_parallel(const Replicated& x, const LinearParameters& layer, WeightLayout layout = WeightLayout::out_in);

/// Weight cut along its input dim: Varying [T, K/tp] -> Partial [T, N] -> Stream; the bias is added once, after the
/// reduction.
Stream row_parallel(const Varying& x, const LinearParameters& layer, const TensorParallel& tp, const std::string& site,
                    WeightLayout layout = WeightLayout::out_in);

}  // namespace tetra
