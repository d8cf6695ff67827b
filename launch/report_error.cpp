#include "launch/report_error.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace tetra {

std::string message_of(const std::exception& error) {
  const std::string text = error.what();
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  return wanted != nullptr && std::string(wanted) == "1" ? text : text.substr(0, text.find("\nException raised from "));
}

void report_error(const std::string& message) {
  const std::string line = "tetra: error: " + message + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void wait_for_main_rank(int rank) {
  if (rank != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
}

void report_rank_error(const std::string& message, int rank) {
  wait_for_main_rank(rank);
  report_error(rank == 0 ? message : "rank " + std::to_string(rank) + ": " + message);
}

}  // namespace tetra
