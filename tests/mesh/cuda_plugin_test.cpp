#include "mesh/backend/cuda_plugin.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "kernels/error.h"

namespace tetra {
namespace {

const std::string kPlugin = TETRA_BUILD "/libtetra_cuda.so";

bool built() {
  return access(kPlugin.c_str(), R_OK) == 0;
}

std::string error_of(const std::string& path) {
  try {
    load_cuda_plugin(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Standard output of a shell command.
std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) {
    output += buffer;
  }
  if (pipe != nullptr) {
    pclose(pipe);
  }
  return output;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(CudaPlugin, MissingFileSaysWhatWouldWork) {
  const std::string text = error_of("/nowhere/libtetra_cuda.so");
  EXPECT_TRUE(has(text, "/nowhere/libtetra_cuda.so")) << text;
  EXPECT_TRUE(has(text, "-DTETRA_CUDA=ON")) << text;
}

TEST(CudaPlugin, AnotherLibraryIsNoPlugin) {
  const std::string text = error_of("libm.so.6");
  EXPECT_TRUE(has(text, "no Tetra plug-in") && has(text, kCudaPluginEntry)) << text;
}

TEST(CudaPlugin, HasItsEntryPoint) {
  if (!built()) {
    GTEST_SKIP() << "built without CUDA";
  }
  EXPECT_TRUE(has(output_of("nm -D --defined-only " + kPlugin), kCudaPluginEntry));
}

TEST(CudaPlugin, HasKernelsForAmpereAndHopper) {
  if (!built()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const std::string list = output_of("PATH=$PATH:/usr/local/cuda/bin cuobjdump --list-elf " + kPlugin + " 2>&1");
  EXPECT_TRUE(has(list, "sm_80")) << list;
  EXPECT_TRUE(has(list, "sm_90")) << list;
}

TEST(CudaPlugin, LoadsWhereItsLibrariesAre) {
  if (!built()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const std::string text = error_of(kPlugin);
  if (has(text, "cannot open shared object file")) {
    EXPECT_TRUE(has(text, ".so")) << "the missing library is named: " << text;
    GTEST_SKIP() << text;
  }
  ASSERT_EQ(text, "");
  EXPECT_EQ(load_cuda_plugin(kPlugin).version, kCudaPluginVersion);
}

}  // namespace
}  // namespace tetra
