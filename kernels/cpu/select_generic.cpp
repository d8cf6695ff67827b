// Where there is one instruction set, there is nothing to choose.

#include "kernels/cpu/loops.h"

namespace tetra::cpu {

const LoopTable& loop_table() {
  return kDefaultLoops;
}

}  // namespace tetra::cpu
