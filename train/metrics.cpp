#include "train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "kernels/error.h"

namespace tetra {
namespace {

std::string duration(double seconds) {
  const auto total = static_cast<int64_t>(std::lround(seconds));
  if (total >= 3600) {
    return fmt::format("{}h {:02}m", total / 3600, total % 3600 / 60);
  }
  return total >= 60 ? fmt::format("{}m {:02}s", total / 60, total % 60) : fmt::format("{}s", total);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  if (path.empty()) {
    return;
  }
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // what matters is whether the file opens
  std::filesystem::create_directories(folder, ignored);
  file_ = std::fopen(path.c_str(), "w");
  require(file_ != nullptr, "log.metrics: cannot write {}: {}", path, std::strerror(errno));
}

MetricsFile::~MetricsFile() {
  if (file_ != nullptr) {
    std::fclose(file_);
  }
}

void MetricsFile::write(const StepReport& report) {
  if (file_ == nullptr) {
    return;
  }
  const StepResult& r = report.result;
  const std::string line = fmt::format(
      R"({{"step":{},"loss":{:.17g},"grad_norm":{:.17g},"lr":{:.17g},"tokens":{},"tokens_per_second":{:.6g},"mfu":{:.4g}}})"
      "\n",
      r.step, r.loss, r.grad_norm, r.lr, r.tokens, report.tokens_per_second, report.mfu);
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0;
  require(written, "log.metrics: cannot write {}: {}", path_, std::strerror(errno));
}

ProgressLine::ProgressLine(int64_t total_steps, int64_t every)
    : total_steps_(total_steps),
      every_(every),
      terminal_(::isatty(STDOUT_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

void ProgressLine::show(const StepReport& report) {
  const StepResult& r = report.result;
  if (r.step % every_ != 0 && r.step != total_steps_) {
    return;
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
  const double left = spent.count() / static_cast<double>(r.step) * static_cast<double>(total_steps_ - r.step);
  const std::string line =
      fmt::format("step {}/{} | loss {:.4f} | grad_norm {:.3f} | {:.0f} tokens/s | {} left", r.step, total_steps_,
                  r.loss, r.grad_norm, report.tokens_per_second, duration(left));
  const bool last = r.step == total_steps_;
  fmt::print("{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ && !last ? "" : "\n");
  std::fflush(stdout);
}

}  // namespace tetra
