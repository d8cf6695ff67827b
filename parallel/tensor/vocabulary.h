#pragma once
// Embedding, output head and loss over a vocabulary cut over tp. tp need not divide the vocabulary: the cut is uneven
// and no padded logit exists.

#include <string>

#include <ATen/core/Tensor.h>

#include "parallel/parameter.h"
#include "parallel/tensor/regions.h"

namespace tetra {

/// Rows of `table` [V/tp, H] for ids [T] (int64, all in [0, V)): each rank adds the rows that it holds. The gradient of
/// a row that several tokens share accumulates in at least fp32.
Stream vocab_parallel_embedding(const at::Tensor& ids, const Parameter& table, const TensorParallel& tp,
                                const std::string& site);

/// Sum over counted tokens of `scale` * cross entropy, as a scalar of at least fp32 that is equal on all ranks. logits
/// [T, V/tp] are OVERWRITTEN with their gradient when gradients are on; labels [T] int64, kIgnoreIndex is not counted.
/// Two all-reduces over tp of T and 2T statistics in fp32.
at::Tensor vocab_parallel_cross_entropy(const Varying& logits, const at::Tensor& labels, int64_t vocab_begin,
                                        double scale, const TensorParallel& tp, const std::string& site);

}  // namespace tetra
