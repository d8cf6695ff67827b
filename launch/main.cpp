#include "launch/command_line.h"

int main(int argc, char** argv) {
  return tetra::run_command_line(argc, argv);
}
