#pragma once
// Debug mode: what a rank is about to do, compared over its group before anything is sent.

#include <cstdint>
#include <string>
#include <vector>

namespace tetra {

class Group;

/// Collective over `group`: every rank's `text` ("#17 all_reduce(sum) 'row_parallel.forward' float32 [4, 128]"). Throws
/// the same Error on all ranks, listing every rank's text, when they differ. Uses the backend without counting.
void compare_fingerprints(const Group& group, const std::string& text);

/// The same for the splits of an all_to_all: what rank r sends to rank j must be what j expects from r.
void compare_splits(const Group& group, const std::string& text, const std::vector<int64_t>& in_splits,
                    const std::vector<int64_t>& out_splits);

}  // namespace tetra
