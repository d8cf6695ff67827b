#pragma once
// Rotary position embedding (Su et al., 2021), rotate-half form, with the scalings of the Llama family.

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

namespace tetra {

/// How rotary frequencies are made. Field meanings follow Hugging Face's rope_parameters.
struct RopeConfig {
  int64_t head_dim = 0;
  double theta = 10000.0;
  std::string type = "default";  // default | linear | llama3
  double factor = 1.0;           // linear, llama3
  double low_freq_factor = 1.0;  // llama3
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

/// cos and sin tables [positions, D/2] in `dtype` float (angles in float, as transformers) or double (all in double).
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};

/// Tables for positions 0 .. count-1.
RopeTable make_rope_table(const RopeConfig& config, int64_t count, at::ScalarType dtype);

/// Rotates q [B,S,A,D] and k [B,S,G,D] IN PLACE by the GLOBAL positions [S] or [B,S] (int64), and returns them with the
/// autograd link made; saves nothing but the tables. The rotation is computed in the tables' type and rounded once.
/// q and k need not be contiguous, but D must be dense. Inputs that autograd needs elsewhere unrotated must be cloned
/// by the caller.
std::pair<at::Tensor, at::Tensor> rope_(const at::Tensor& q, const at::Tensor& k, const RopeTable& table,
                                        const at::Tensor& positions);

}  // namespace tetra
