#include <cstdio>

#include "kernels/error.h"
#include "launch/command_line.h"
#include "launch/commands/commands.h"
#include "launch/config_reader.h"
#include "launch/report_error.h"

namespace tetra {

int run_config(const ConfigArguments& arguments) {
  try {
    const LoadedConfig loaded = load_config({arguments.file, environment_variables(), arguments.sets});
    std::fputs(write_config(loaded.config).c_str(), stdout);
  } catch (const Error& error) {
    report_error(error.what());
    return kExitUsage;
  }
  return kExitDone;
}

}  // namespace tetra
