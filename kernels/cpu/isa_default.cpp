// The loops for any machine of the project's baseline.

#include "kernels/cpu/all_loops.h"

namespace tetra::cpu {

constinit const LoopTable kDefaultLoops = loops_of_this_file();

}  // namespace tetra::cpu
