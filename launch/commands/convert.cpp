#include "launch/command_line.h"
#include "launch/commands/commands.h"
#include "launch/report_error.h"
#include "parallel/parameter.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/hugging_face.h"

namespace tetra {
namespace {

/// The type that --dtype names; nothing where it is not given.
std::optional<at::ScalarType> export_dtype(const std::string& name) {
  return name.empty() ? std::nullopt : std::optional(parse_precision(name).compute);
}

int convert_to_hugging_face(const ConvertArguments& arguments) {
  const FoundCheckpoint found = find_checkpoint(arguments.from);
  if (!found.skipped.empty()) {
    report_error(fmt::format("newer checkpoints are not whole: {}; taking {}", found.skipped, found.path));
  }
  export_checkpoint(found.path, arguments.folder, export_dtype(arguments.dtype), arguments.max_shard_bytes);
  return kExitDone;
}

}  // namespace

int run_convert(const ConvertArguments& arguments) {
  if (!status_of(arguments.from)) {
    report_error(arguments.from + ": no such folder");
    return kExitUsage;
  }
  if (arguments.to == "hf") {
    return convert_to_hugging_face(arguments);
  }
  if (!arguments.dtype.empty()) {
    report_error("--dtype is for --to hf; a checkpoint holds fp32, or fp64 where the folder does");
    return kExitUsage;
  }
  import_hugging_face(arguments.from, arguments.folder);
  return kExitDone;
}

}  // namespace tetra
