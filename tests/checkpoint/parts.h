#pragma once
// Random tensors, and random ways to divide them among ranks.

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/data/state_part.h"
#include "train/checkpoint/box.h"

namespace tetra::testing {

using Tensors = std::map<std::string, at::Tensor>;
using Random = std::mt19937_64;

/// Tensors of 0 to 3 dims and several types, some without elements, all bytes drawn.
Tensors random_tensors(Random& random);

/// Boxes that tile a tensor of this shape exactly, some of them empty.
std::vector<Box> random_tiling(const std::vector<int64_t>& shape, Random& random);

/// A state for each of `ranks`: copies of the boxes of random tilings, or zeros; some are strided views.
std::vector<std::vector<StatePart>> random_division(const Tensors& tensors, int ranks, bool zeros, Random& random);

/// Whether the parts hold the bytes of the tensors that they are boxes of.
::testing::AssertionResult parts_equal(const std::vector<StatePart>& parts, const Tensors& tensors);

/// One rank's whole tensors, without division.
std::vector<StatePart> whole_parts(const Tensors& tensors);

/// The message of the Error that `call` throws; "" where it throws none.
std::string error_of(const std::function<void()>& call);

/// A tensor filled with a pattern that `seed` makes.
at::Tensor patterned(const std::vector<int64_t>& shape, at::ScalarType dtype, uint64_t seed);

}  // namespace tetra::testing
