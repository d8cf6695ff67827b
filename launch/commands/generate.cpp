#include "train/generate.h"

#include <cstdio>
#include <filesystem>

#include "launch/command_line.h"
#include "launch/commands/commands.h"
#include "launch/report_error.h"

namespace tetra {

int run_generate(const GenerateArguments& arguments) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(arguments.model_folder, ignored)) {
    report_error(arguments.model_folder + ": no such folder; it must hold config.json and *.safetensors");
    return kExitUsage;
  }
  const std::string text = generate_text(arguments.model_folder, arguments.options);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  return kExitDone;
}

}  // namespace tetra
