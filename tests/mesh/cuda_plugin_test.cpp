#include "mesh/backend/cuda_plugin.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
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

template <typename T>
T number_at(const std::string& bytes, size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size()) {
    std::memcpy(&value, bytes.data() + offset, sizeof value);
  }
  return value;
}

/// The GPU architectures that a library has machine code for, as `cuobjdump --list-elf` tells where it is installed: a
/// fat binary is a header (magic, version, u16 header size, u64 size) and entries (u16 kind, u16 version, u32 header
/// size, u64 payload size, ..., at byte 28 the architecture); kind 2 is machine code.
std::set<uint32_t> kernel_architectures(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::string magic("\x50\xed\x55\xba", 4);
  std::set<uint32_t> found;
  for (size_t at = bytes.find(magic); at != std::string::npos; at = bytes.find(magic, at + 1)) {
    size_t entry = at + number_at<uint16_t>(bytes, at + 6);
    const size_t end = entry + number_at<uint64_t>(bytes, at + 8);
    while (entry < end && end <= bytes.size()) {
      if (number_at<uint16_t>(bytes, entry) == 2) {
        found.insert(number_at<uint32_t>(bytes, entry + 28));
      }
      const size_t size = number_at<uint32_t>(bytes, entry + 4) + number_at<uint64_t>(bytes, entry + 8);
      entry += std::max<size_t>(size, 1);
    }
  }
  return found;
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
  const std::set<uint32_t> found = kernel_architectures(kPlugin);
  EXPECT_EQ(found.count(80), 1u) << fmt::format("{}", fmt::join(found, ", "));
  EXPECT_EQ(found.count(90), 1u) << fmt::format("{}", fmt::join(found, ", "));
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
