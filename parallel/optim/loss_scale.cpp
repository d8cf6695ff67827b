#include "parallel/optim/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "kernels/error.h"

namespace tetra {

LossScale::LossScale(LossScaleOptions options)
    : options_(options), state_{options.initial, 0, options.hysteresis, 0, 0} {
  const LossScaleOptions& o = options_;
  require(o.min_scale > 0 && std::isfinite(o.initial) && o.initial >= o.min_scale,
          "loss scale: initial {} with min_scale {}; a finite initial scale that is not below a positive min_scale is "
          "needed",
          o.initial, o.min_scale);
  require(o.growth_factor >= 1 && std::isfinite(o.growth_factor),
          "loss scale: growth_factor {}; use a number from 1 (never grows) up, such as 2", o.growth_factor);
  require(o.backoff_factor > 0 && o.backoff_factor <= 1,
          "loss scale: backoff_factor {}; use a number above 0 and up to 1 (never backs off), such as 0.5",
          o.backoff_factor);
  require(o.growth_interval >= 1, "loss scale: growth_interval {}; use 1 or more", o.growth_interval);
  require(o.hysteresis >= 1, "loss scale: hysteresis {}; use 1 (back off at each overflow) or more", o.hysteresis);
}

void LossScale::update(bool overflow) {
  if (overflow) {
    ++state_.skipped;
    state_.good_steps = 0;
    back_off();
    return;
  }
  state_.hopeless = 0;
  if (++state_.good_steps == options_.growth_interval) {
    state_.good_steps = 0;
    state_.hysteresis_left = options_.hysteresis;
    const double grown = state_.scale * options_.growth_factor;
    state_.scale = std::isfinite(grown) ? grown : state_.scale;
  }
}

void LossScale::back_off() {
  if (state_.scale <= options_.min_scale && ++state_.hopeless >= kHopeless) {
    fail(
        "loss scale: gradients overflowed {} times in a row at the smallest scale {} (min_scale); {} steps were "
        "skipped in all. Look for a loss that is infinite or NaN, lower the learning rate, or train in bf16",
        state_.hopeless, state_.scale, state_.skipped);
  }
  state_.hysteresis_left = std::max<int64_t>(0, state_.hysteresis_left - 1);
  if (state_.hysteresis_left == 0) {
    state_.scale = std::max(options_.min_scale, state_.scale * options_.backoff_factor);
  }
}

void LossScale::restore(const State& state) {
  require(std::isfinite(state.scale) && state.scale > 0 && state.good_steps >= 0 && state.hysteresis_left >= 0 &&
              state.hopeless >= 0 && state.skipped >= 0,
          "loss scale: cannot go on from scale {}, good steps {}, hysteresis left {}, overflows at the smallest scale "
          "{}, skipped {}; a positive scale and counts from 0 up are needed",
          state.scale, state.good_steps, state.hysteresis_left, state.hopeless, state.skipped);
  state_ = state;
  // Options may have changed since the state was saved.
  state_.scale = std::max(state.scale, options_.min_scale);
  state_.good_steps = std::min(state.good_steps, options_.growth_interval - 1);
  state_.hysteresis_left = std::min(state.hysteresis_left, options_.hysteresis);
}

}  // namespace tetra
