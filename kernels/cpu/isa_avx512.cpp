// The loops for avx512, by the flags that CMake gives this file.

#include "kernels/cpu/all_loops.h"

namespace tetra::cpu {

constinit const LoopTable kAvx512Loops = loops_of_this_file();

}  // namespace tetra::cpu
