#pragma once
// Errors on standard error.

#include <exception>
#include <string>

namespace tetra {

/// The error's message. libtorch's own errors carry the stack behind it, which is left out unless
/// TORCH_SHOW_CPP_STACKTRACES is 1.
std::string message_of(const std::exception& error);

/// Writes "tetra: error: MESSAGE" as one write, so that the lines of several processes do not mix.
void report_error(const std::string& message);

/// Most errors are the same on every rank. The main rank speaks and leaves at once, upon which the launcher ends the
/// others while they wait here; a rank that is alone with its error speaks after this wait.
void wait_for_main_rank(int rank);

/// The two together, for a process that is one of several ranks.
void report_rank_error(const std::string& message, int rank);

}  // namespace tetra
