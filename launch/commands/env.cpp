// What Tetra finds on this machine.
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include "kernels/error.h"
#include "launch/command_line.h"
#include "launch/commands/commands.h"
#include "mesh/backend/cuda_plugin.h"
#include "mesh/rendezvous.h"

namespace tetra {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "unknown";
}

std::string cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return fmt::format("{} of {} usable", usable, sysconf(_SC_NPROCESSORS_ONLN));
}

std::string memory() {
  const double gib = 1024.0 * 1024.0 * 1024.0;
  const double total = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  std::string text = fmt::format("{:.1f} GiB", total / gib);
  double limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) {  // "max": no limit
    text += fmt::format(", {:.1f} GiB allowed to this control group", limit / gib);
  }
  return text;
}

/// Asked by name, so that a build without MPI needs no other code here.
std::string mpi() {
  using Version = int (*)(char*, int*);
  const auto version = reinterpret_cast<Version>(dlsym(RTLD_DEFAULT, "MPI_Get_library_version"));
  if (version == nullptr) {
    return "not built in";
  }
  char text[8192] = "";  // MPI_MAX_LIBRARY_VERSION_STRING is 256 to 8192
  int length = 0;
  version(text, &length);
  const std::string all = text;
  return all.substr(0, all.find_first_of(",\n"));
}

/// A plug-in takes libtorch's CUDA libraries with it, so it is opened only where there is a GPU.
std::string cuda() {
  std::error_code ignored;
  if (!std::filesystem::exists("/dev/nvidiactl", ignored)) {
    return "no GPU on this machine";
  }
  try {
    return fmt::format("plug-in loads, {} GPUs", load_cuda_plugin().device_count());
  } catch (const Error& error) {
    return error.what();
  }
}

std::string place() {
  try {
    const Place place = read_place();
    if (place.source == "none") {
      return "no launcher: thread ranks in one process";
    }
    return fmt::format("rank {} of {} (local {} of {}), from {}", place.rank, place.world_size, place.local_rank,
                       place.local_size, place.source);
  } catch (const Error& error) {
    return error.what();
  }
}

std::string allocator() {
  const bool tcmalloc = dlsym(RTLD_DEFAULT, "tc_version") || dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
  return tcmalloc ? "tcmalloc" : "libc's malloc (fresh pages are slow on virtual machines; install tcmalloc)";
}

void print(const char* name, const std::string& value) {
  std::printf("%-16s %s\n", name, value.c_str());
}

}  // namespace

int run_env() {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  print("tetra", TETRA_VERSION);
  print("libtorch", TORCH_VERSION);
  print("compiler", compiler());
  print("cpu", cpu_model());
  print("cores", cores());
  print("vectors", at::get_cpu_capability());
  print("memory", memory());
  print("allocator", allocator());
  print("OMP_NUM_THREADS", threads ? threads : "not set");
  print("mpi", mpi());
  print("cuda", cuda());
  print("place", place());
  return kExitDone;
}

}  // namespace tetra
