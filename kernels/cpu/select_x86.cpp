// Chooses the loops on x86-64.

#include <string>

#include <ATen/Version.h>

#include "kernels/cpu/loops.h"

namespace tetra::cpu {

const LoopTable& loop_table() {
  static const LoopTable& table = []() -> const LoopTable& {
    const std::string capability = at::get_cpu_capability();
    return capability == "AVX512" ? kAvx512Loops : capability == "AVX2" ? kAvx2Loops : kDefaultLoops;
  }();
  return table;
}

}  // namespace tetra::cpu
