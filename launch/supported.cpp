#include "launch/supported.h"

#include <optional>
#include <string>

#include "kernels/error.h"
#include "mesh/backend/cuda_plugin.h"

namespace tetra {
namespace {

struct Refusal {
  std::string key;
  std::string message;
};
using Finding = std::optional<Refusal>;

Finding check_size(const std::string& key, int64_t size, const std::string& what) {
  if (size == 1) {
    return std::nullopt;
  }
  return Refusal{key, fmt::format("{} {}: {} is not there yet; use 1", key, size, what)};
}

Finding check_parallelism(const ParallelismConfig& parallelism) {
  const Degrees& degrees = parallelism.degrees;
  for (const Finding& finding :
       {check_size("parallelism.pp_size", degrees.pp, "pipeline parallelism"),
        check_size("parallelism.cp_size", degrees.cp, "context parallelism"),
        check_size("parallelism.sp_size", degrees.sp, "Ulysses sequence parallelism"),
        check_size("parallelism.ep_size", degrees.ep, "expert parallelism"),
        check_size("parallelism.virtual_stages", parallelism.virtual_stages, "the interleaved pipeline")}) {
    if (finding) {
      return finding;
    }
  }
  return std::nullopt;
}

Finding check_training(const Config& config) {
  if (!config.data.mask.empty()) {
    return Refusal{
        "data.mask",
        fmt::format("data.mask {}: padding masks are not there yet; leave it out, and put -100 in data.labels "
                    "where a token shall not count",
                    config.data.mask)};
  }
  return std::nullopt;
}

Finding check_device(const Config& config) {
  if (config.device == "cuda") {
    try {
      load_cuda_plugin();
    } catch (const Error& error) {
      return Refusal{"device", fmt::format("device cuda: {}", error.what())};
    }
  } else if (config.parallelism.backend == "nccl") {
    return Refusal{"parallelism.backend",
                   fmt::format("parallelism.backend nccl: it carries tensors of a GPU, but device "
                               "is {}; use auto, or device cuda",
                               config.device)};
  }
  return std::nullopt;
}

Finding find_unsupported(const Config& config) {
  for (const Finding& finding : {check_parallelism(config.parallelism), check_training(config), check_device(config)}) {
    if (finding) {
      return finding;
    }
  }
  return std::nullopt;
}

}  // namespace

void check_supported(const Config& config) {
  if (const Finding finding = find_unsupported(config)) {
    fail("{}", finding->message);
  }
}

void check_supported(const LoadedConfig& loaded) {
  if (const Finding finding = find_unsupported(loaded.config)) {
    fail("{}: {}", loaded.place(finding->key), finding->message);
  }
}

}  // namespace tetra
