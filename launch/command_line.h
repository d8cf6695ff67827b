#pragma once
// The `tetra` command.

namespace tetra {

/// Exit codes: done; a run that failed; a command line or configuration that cannot work.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

/// Runs the command that the arguments name. Writes errors as one message "tetra: error: ..." to standard error.
int run_command_line(int argc, char** argv);

}  // namespace tetra
