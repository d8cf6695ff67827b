#pragma once
// Bytes of tensors that one thread holds: a thread rank allocates on its own thread.

#include <algorithm>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace tetra::testing {

class MemoryMeter {
 public:
  MemoryMeter() : tally_(std::make_shared<Tally>()), guard_(c10::DebugInfoKind::PROFILER_STATE, tally_) {}

  int64_t live() const { return tally_->live; }
  int64_t peak() const { return tally_->peak; }
  void reset_peak() { tally_->peak = tally_->live; }

 private:
  struct Tally : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      live += size;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0;
    int64_t peak = 0;
  };

  std::shared_ptr<Tally> tally_;
  c10::DebugInfoGuard guard_;
};

}  // namespace tetra::testing
