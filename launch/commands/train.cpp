#include "train/run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include <ATen/Parallel.h>

#include "kernels/error.h"
#include "launch/command_line.h"
#include "launch/commands/commands.h"
#include "launch/config_reader.h"
#include "launch/report_error.h"
#include "launch/settle_ranks.h"
#include "launch/supported.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"
#include "mesh/world.h"
#include "train/trainer.h"

namespace tetra {
namespace {

struct Plan {
  Config config;
  int world_size = 1;
};

/// Everything that can fail before a rank or a group is made.
Plan make_plan(const TrainArguments& arguments, const Place& place) {
  LoadedConfig loaded = load_config({arguments.config.file, environment_variables(), arguments.config.sets});
  check_supported(loaded);
  const int64_t world_size = settle_ranks(loaded, arguments.ranks, place);
  const ModelConfig model = resolve_model_config(loaded.config.model, loaded.place("model.config") + ": model.config");
  check_model_layout(model, loaded.config.parallelism.degrees);
  check_sequence_length(model, loaded.config.data.seq_len);
  if (loaded.config.device == "auto") {
    loaded.config.device = "cpu";
  }
  require(loaded.config.device != "cuda" || world_size == 1 || place.source != "none",
          "device cuda with {} ranks: a GPU belongs to a process; start them with mpirun -n {}, srun or torchrun",
          world_size, world_size);
  return {loaded.config, static_cast<int>(world_size)};
}

WorldOptions world_options(const Config& config) {
  WorldOptions options;
  options.degrees = config.parallelism.degrees;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(config.parallelism.timeout_seconds * 1000) + 1);
  options.debug = config.parallelism.debug_collectives;
  return options;
}

int run_threads(const Plan& plan) {
  try {
    run_local_ranks(plan.world_size, world_options(plan.config),
                    [&](World& world) { run_training(plan.config, world); });
  } catch (const std::exception& error) {
    report_error(message_of(error));
    return kExitFailed;
  }
  return kExitDone;
}

/// The ranks of one machine share its cores, as thread ranks do; where the launcher bound this process to fewer, or
/// OMP_NUM_THREADS says how many, that holds.
void share_cores(const World& world) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const auto share = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) / world.local_size();
    at::set_num_threads(std::max(1, std::min(share, at::get_num_threads())));
  }
}

int run_one_rank(const Plan& plan, const Place& place) {
  std::unique_ptr<World> world;
  try {
    world = std::make_unique<World>(world_options(plan.config), make_fabric(place, plan.config.device));
    share_cores(*world);
    run_training(plan.config, *world);
  } catch (const std::exception& error) {
    if (world && place.world_size > 1) {
      wait_for_main_rank(place.rank);
      world->abort(message_of(error));  // says it and ends every rank
    }
    report_rank_error(message_of(error), place.rank);
    return kExitFailed;
  }
  return kExitDone;
}

}  // namespace

int run_train(const TrainArguments& arguments) {
  Place place;
  Plan plan;
  try {
    place = read_place();
    plan = make_plan(arguments, place);
  } catch (const std::exception& error) {
    report_rank_error(message_of(error), place.rank);
    return kExitUsage;
  }
  return place.source == "none" ? run_threads(plan) : run_one_rank(plan, place);
}

}  // namespace tetra
