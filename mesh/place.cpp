// Reading a process's place from its environment.

#include <charconv>
#include <cstdlib>
#include <limits>
#include <vector>

#include "kernels/error.h"
#include "mesh/rendezvous.h"

namespace tetra {
namespace {

using Getenv = std::function<std::optional<std::string>(const std::string&)>;

/// Environment variables by name, with errors that carry name and value.
class Environment {
 public:
  explicit Environment(const Getenv& get) : get_(get) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = get_(name);
    return value && value->empty() ? std::nullopt : value;
  }

  bool has(const std::string& name) const { return text(name).has_value(); }

  std::optional<int64_t> number(const std::string& name) const {
    const auto value = text(name);
    if (!value) {
      return std::nullopt;
    }
    int64_t result = 0;
    const auto [end, code] = std::from_chars(value->data(), value->data() + value->size(), result);
    require(code == std::errc() && end == value->data() + value->size() && result >= 0 &&
                result <= std::numeric_limits<uint32_t>::max(),
            "environment variable {}='{}' is not a whole number of 0 or more", name, *value);
    return result;
  }

  /// The variable `name`, which must be there since `because` is.
  int64_t needed(const std::string& name, const std::string& because) const {
    const auto value = number(name);
    require(value.has_value(), "environment variable {} is set but {} is not; set both, or neither", because, name);
    return *value;
  }

 private:
  const Getenv& get_;
};

void check_place(const Place& place, const char* rank, const char* size, const char* local_rank,
                 const char* local_size) {
  require(place.world_size >= 1 && place.rank < place.world_size,
          "environment variables {}={} and {}={} do not fit: "
          "the rank must be below the number of ranks",
          rank, place.rank, size, place.world_size);
  require(
      place.local_size <= place.world_size && place.local_rank < place.local_size,
      "environment variables {}={}, {}={} and {}={} do not fit: needed are local rank < ranks on this machine <= all "
      "ranks",
      local_rank, place.local_rank, local_size, place.local_size, size, place.world_size);
}

/// A launcher that speaks MPI: the names of its four variables; the local ones may be absent.
struct MpiNames {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr MpiNames kMpiNames[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

/// A launcher's rank and torchrun's may both be set, but may not contradict each other.
void check_same_as_torchrun(const Environment& env, const Place& place, const MpiNames& names) {
  if (env.has("RANK") && env.has("WORLD_SIZE")) {
    const auto rank = env.number("RANK");
    const auto size = env.number("WORLD_SIZE");
    require(rank == place.rank && size == place.world_size,
            "the environment contradicts itself: {}={} and {}={}, but RANK={} and WORLD_SIZE={}; unset one pair (a "
            "torchrun below mpirun is not supported)",
            names.rank, place.rank, names.size, place.world_size, *rank, *size);
  }
}

std::optional<Place> read_mpi(const Environment& env, const MpiNames& names) {
  if (!env.has(names.rank) && !env.has(names.size)) {
    return std::nullopt;
  }
  Place place;
  place.source = "mpi";
  place.rank = static_cast<int>(env.needed(names.rank, names.size));
  place.world_size = static_cast<int>(env.needed(names.size, names.rank));
  // Where the launcher does not tell, MPI itself will (the fabric asks it).
  place.local_rank = static_cast<int>(env.number(names.local_rank).value_or(place.rank));
  place.local_size = static_cast<int>(env.number(names.local_size).value_or(place.world_size));
  check_place(place, names.rank, names.size, names.local_rank, names.local_size);
  check_same_as_torchrun(env, place, names);
  return place;
}

/// Entry `node` of Slurm's list of tasks by node, "2(x3),1" for 2, 2, 2, 1.
int64_t tasks_on_node(const std::string& list, int64_t node) {
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    int64_t tasks = 0;
    int64_t repeats = 1;
    auto read = std::from_chars(at, end, tasks);
    bool good = read.ec == std::errc();
    at = read.ptr;
    if (good && list.compare(at - list.data(), 2, "(x") == 0) {
      read = std::from_chars(at + 2, end, repeats);
      good = read.ec == std::errc() && read.ptr < end && *read.ptr == ')';
      at = read.ptr + (good ? 1 : 0);
    }
    good = good && (at == end || *at == ',');
    require(good, "environment variable SLURM_STEP_TASKS_PER_NODE='{}' is not a list like 4(x2),3", list);
    if (node < repeats) {
      return tasks;
    }
    node -= repeats;
    ++at;
  }
  fail("environment variable SLURM_STEP_TASKS_PER_NODE='{}' has no entry for this node, SLURM_NODEID", list);
}

/// Slurm numbers the steps that srun starts from 0; the batch script and interactive shells are steps with the last
/// few 32-bit numbers, and have one task whatever SLURM_NTASKS says.
bool in_srun_step(const Environment& env) {
  constexpr int64_t kFirstReservedStep = 0xfffffff0;
  return env.has("SLURM_PROCID") && env.has("SLURM_STEP_ID") && *env.number("SLURM_STEP_ID") < kFirstReservedStep;
}

std::optional<Place> read_slurm(const Environment& env) {
  if (!in_srun_step(env)) {
    return std::nullopt;
  }
  Place place;
  place.source = "slurm";
  const char* const size_name = env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  place.rank = static_cast<int>(env.needed("SLURM_PROCID", "SLURM_STEP_ID"));
  place.world_size = static_cast<int>(env.needed(size_name, "SLURM_PROCID"));
  if (place.world_size == 1) {
    return std::nullopt;
  }
  place.local_rank = static_cast<int>(env.needed("SLURM_LOCALID", "SLURM_PROCID"));
  const auto list = env.text("SLURM_STEP_TASKS_PER_NODE");
  require(list.has_value(),
          "environment variable SLURM_PROCID is set but SLURM_STEP_TASKS_PER_NODE is not; start the "
          "ranks with srun");
  place.local_size = static_cast<int>(tasks_on_node(*list, env.number("SLURM_NODEID").value_or(0)));
  check_place(place, "SLURM_PROCID", size_name, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE");
  return place;
}

std::optional<Place> read_torchrun(const Environment& env) {
  if (!env.has("RANK") && !env.has("WORLD_SIZE")) {
    return std::nullopt;
  }
  Place place;
  place.source = "torchrun";
  place.rank = static_cast<int>(env.needed("RANK", "WORLD_SIZE"));
  place.world_size = static_cast<int>(env.needed("WORLD_SIZE", "RANK"));
  if (place.world_size == 1) {
    check_place(place, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    return place;
  }
  place.local_rank = static_cast<int>(env.needed("LOCAL_RANK", "RANK"));
  const auto local_size = env.number("LOCAL_WORLD_SIZE");
  require(local_size.has_value() || place.local_rank == place.rank,
          "environment variables RANK={} and LOCAL_RANK={} "
          "differ, so the ranks are on several machines: set LOCAL_WORLD_SIZE to the number of ranks on this one",
          place.rank, place.local_rank);
  place.local_size = static_cast<int>(local_size.value_or(place.world_size));
  check_place(place, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  const auto address = env.text("MASTER_ADDR");
  require(address.has_value(),
          "environment variable RANK is set but MASTER_ADDR is not; set it to the name or address "
          "of rank 0's machine");
  place.master_address = *address;
  const int64_t port = env.needed("MASTER_PORT", "RANK");
  require(port >= 1 && port <= 65535, "environment variable MASTER_PORT={} is not a port; use 1 to 65535", port);
  place.master_port = static_cast<int>(port);
  place.agent_store = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return place;
}

}  // namespace

Place read_place(const Getenv& getenv_like) {
  const Environment env(getenv_like);
  for (const MpiNames& names : kMpiNames) {
    if (const auto place = read_mpi(env, names)) {
      return *place;
    }
  }
  if (const auto place = read_slurm(env)) {
    return *place;
  }
  return read_torchrun(env).value_or(Place{});
}

Place read_place() {
  return read_place([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace tetra
