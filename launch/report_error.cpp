#include "launch/report_error.h"

#include <chrono>
#include <cstdio>
#include <thread>

namespace tetra {

void report_error(const std::string& message) {
  const std::string line = "tetra: error: " + message + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void report_rank_error(const std::string& message, int rank, int world_size) {
  if (world_size == 1 || rank == 0) {
    report_error(message);
    return;
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  report_error("rank " + std::to_string(rank) + ": " + message);
}

}  // namespace tetra
