// The loops for avx2, by the flags that CMake gives this file.

#include "kernels/cpu/all_loops.h"

namespace tetra::cpu {

constinit const LoopTable kAvx2Loops = loops_of_this_file();

}  // namespace tetra::cpu
