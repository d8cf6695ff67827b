#include "train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/safetensors.h"

namespace tetra {
namespace {

std::string duration(double seconds) {
  const auto total = static_cast<int64_t>(std::lround(seconds));
  if (total >= 3600) {
    return fmt::format("{}h {:02}m", total / 3600, total % 3600 / 60);
  }
  return total >= 60 ? fmt::format("{}m {:02}s", total / 60, total % 60) : fmt::format("{}s", total);
}

// JSON has no word for a number that is not finite (a skipped step's).
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.17g}", value) : "null";
}

// The lines of steps up to `last`, as an earlier run wrote them; a torn line is none.
std::string lines_up_to(const std::string& path, int64_t last) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("step") && json["step"].is_number() && json["step"] <= last) {
      kept += line + "\n";
    }
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, int64_t steps_done) : path_(path) {
  if (path.empty()) {
    return;
  }
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // what matters is whether the file opens
  std::filesystem::create_directories(folder, ignored);
  if (steps_done > 0 && std::filesystem::exists(path, ignored)) {
    write_file_atomically(path, lines_up_to(path, steps_done));
  }
  file_ = std::fopen(path.c_str(), steps_done > 0 ? "a" : "w");
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
  const std::string scale =
      r.loss_scale ? fmt::format(R"(,"loss_scale":{:.17g},"skipped":{})", *r.loss_scale, r.skipped) : "";
  const std::string line = fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"lr":{:.17g},"tokens":{},"tokens_per_second":{:.6g},"mfu":{:.4g}{}}})"
      "\n",
      r.step, number(r.loss), number(r.grad_norm), r.lr, r.tokens, report.tokens_per_second, report.mfu, scale);
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0;
  require(written, "log.metrics: cannot write {}: {}", path_, std::strerror(errno));
}

ProgressLine::ProgressLine(int64_t total_steps, int64_t every, int64_t steps_done)
    : total_steps_(total_steps),
      steps_done_(steps_done),
      every_(every),
      terminal_(::isatty(STDOUT_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

void ProgressLine::show(const StepReport& report) {
  const StepResult& r = report.result;
  if (r.step % every_ != 0 && r.step != total_steps_) {
    return;
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
  const double left =
      spent.count() / static_cast<double>(r.step - steps_done_) * static_cast<double>(total_steps_ - r.step);
  const std::string line =
      fmt::format("step {}/{} | loss {:.4f} | grad_norm {:.3f} | {:.0f} tokens/s | {} left", r.step, total_steps_,
                  r.loss, r.grad_norm, report.tokens_per_second, duration(left)) +
      (r.skipped ? fmt::format(" | skipped: overflow at loss scale {:g}", *r.loss_scale) : "");
  const bool last = r.step == total_steps_;
  fmt::print("{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ && !last ? "" : "\n");
  std::fflush(stdout);
}

}  // namespace tetra
