#pragma once
// Errors on standard error.

#include <string>

namespace tetra {

/// Writes "tetra: error: MESSAGE" as one write, so that the lines of several processes do not mix.
void report_error(const std::string& message);

/// The same of a process that is one rank of `world_size`. Most errors are the same on every rank: the main rank speaks
/// at once and leaves, upon which the launcher ends the others while they still wait here. A rank that is alone with
/// its error speaks after that time, naming itself.
void report_rank_error(const std::string& message, int rank, int world_size);

}  // namespace tetra
