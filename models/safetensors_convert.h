#pragma once
// Copies runs of elements between types, from memory of any alignment.

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace tetra {

/// Copies `count` elements from `source` (any alignment) to `target` (aligned for its type).
using CopyRun = void (*)(const void* source, void* target, int64_t count);

/// The copy from one type to another, rounding as Tensor::to does; null where the pair is not supported (see
/// WeightReader::read). Equal types are a memcpy for every type.
CopyRun copy_run_for(at::ScalarType from, at::ScalarType to);

}  // namespace tetra
