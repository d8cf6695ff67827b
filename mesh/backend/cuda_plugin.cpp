#include "mesh/backend/cuda_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "kernels/error.h"

namespace tetra {
namespace {

/// The folder of the library or program that this code is in, with a slash at its end.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_cuda_plugin), &info) == 0 || info.dli_fname == nullptr) {
    return "";
  }
  const std::string file = info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
}

std::string find_plugin() {
  if (const char* given = std::getenv("TETRA_CUDA_PLUGIN"); given != nullptr && *given != '\0') {
    return given;
  }
  const std::string beside = own_folder() + "libtetra_cuda.so";
  return access(beside.c_str(), R_OK) == 0 ? beside : "libtetra_cuda.so";
}

const CudaPlugin& open_plugin(const std::string& path) {
  // libtorch_cuda must be global and complete before libtorch first asks for CUDA; its own dependencies come with it.
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    fail(
        "a GPU was asked for, but the CUDA plug-in does not load: {}. It needs a build with nvcc 13 (-DTETRA_CUDA=ON) "
        "and "
        "the full torch wheel with its NVIDIA packages (or the same libraries in LD_LIBRARY_PATH). Without them, use "
        "the "
        "CPU",
        reason ? reason : "unknown reason");
  }
  using Entry = const CudaPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kCudaPluginEntry));
  require(entry != nullptr, "{} is no Tetra plug-in: it has no function {}; build libtetra_cuda.so again", path,
          kCudaPluginEntry);
  const CudaPlugin* plugin = entry();
  require(plugin->version == kCudaPluginVersion,
          "{} is of another build: plug-in version {}, needed {}; build libtetra_cuda.so again", path, plugin->version,
          kCudaPluginVersion);
  return *plugin;
}

}  // namespace

const CudaPlugin& load_cuda_plugin(const std::string& path) {
  // A library is a thing of the process, not of a rank.
  static std::mutex mutex;
  static std::map<std::string, const CudaPlugin*> opened;
  const std::lock_guard lock(mutex);
  const std::string file = path.empty() ? find_plugin() : path;
  auto& plugin = opened[file];
  if (plugin == nullptr) {
    plugin = &open_plugin(file);
  }
  return *plugin;
}

}  // namespace tetra
