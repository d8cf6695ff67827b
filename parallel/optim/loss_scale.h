#pragma once
// The dynamic loss scale of fp16 (Micikevicius et al., "Mixed Precision Training", 2018).

#include <cstdint>

namespace tetra {

struct LossScaleOptions {
  double initial = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // good steps in a row before the scale grows
  int64_t hysteresis = 1;          // overflows that pass before the scale backs off; growth gives them back
  double min_scale = 1;
};

/// What the loss is multiplied by before backward, and gradients divided by after it. Plain arithmetic: ranks that tell
/// it the same hold the same scale, so the overflow has to be agreed over all of them first.
class LossScale {
 public:
  /// Overflows in a row at the smallest scale before update() gives up.
  static constexpr int64_t kHopeless = 20;

  /// All that a checkpoint needs.
  struct State {
    double scale;
    int64_t good_steps;       // in a row, since the last growth or overflow
    int64_t hysteresis_left;  // overflows until the scale backs off, at least 0
    int64_t hopeless;         // overflows in a row at the smallest scale
    int64_t skipped;          // steps skipped since the start
    bool operator==(const State&) const = default;
  };

  /// Throws Error for options that cannot work.
  explicit LossScale(LossScaleOptions options = {});

  double scale() const { return state_.scale; }
  /// Steps that an overflow has skipped.
  int64_t skipped() const { return state_.skipped; }

  /// After each step: on an overflow, which skips the step, the scale backs off once the hysteresis is used up, not
  /// below min_scale; after growth_interval good steps in a row it grows, and the hysteresis is whole again. Throws
  /// Error at the kHopeless-th overflow in a row at the smallest scale: the numbers are broken, not too large.
  void update(bool overflow);

  State state() const { return state_; }
  /// Throws Error for values that no run leaves.
  void restore(const State& state);

 private:
  void back_off();

  LossScaleOptions options_;
  State state_;
};

}  // namespace tetra
