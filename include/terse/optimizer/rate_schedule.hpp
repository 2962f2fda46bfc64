// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "terse/core/check.hpp"

// Learning-rate schedules as values: they depend on the step alone, so a resumed run has the rates of a run without a stop.
//
//     const terse::CosineSchedule rate{.peak = 1e-3F, .steps = 10'000, .warmup = 500, .last = 1e-4F};
//     optimizer.learning_rate(rate(optimizer.steps() + 1));
//
// Steps are counted from 1, as in an optimizer. In the first `warmup` steps the rate rises linearly, peak * step / warmup. The next
// step, the first of the decay, still has the rate `peak`; after `steps` the rate stays `last`. The arguments must be equal on all
// ranks. Schedules throw usage_error for a peak that is not positive and finite, for `last` outside [0, peak], and for parts with more
// than `steps` steps.
//
// Source of the warm-up: Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2.

namespace terse {

namespace detail {

/// Returns the rate of a step: a warm-up, and after step `from` a decay by `height(share)`, which falls from 1 at share 0 to 0
/// at share 1.
template <class Height>
float scheduled_rate(double peak, double last, std::uint64_t warmup, std::uint64_t from, std::uint64_t steps,
                     std::uint64_t step, Height height) {
  require(peak > 0 && std::isfinite(peak), "a schedule's peak", "positive and finite", peak);
  require(last >= 0 && last <= peak, "a schedule's last rate", "in [0, peak]", last);
  require(steps > 0 && warmup <= from && from <= steps,
          "a schedule has at least one step, and at least as many as its parts", static_cast<double>(steps));
  if (step <= warmup)
    return static_cast<float>(peak * static_cast<double>(step) / static_cast<double>(warmup));
  if (step <= from) return static_cast<float>(peak);
  if (step > steps) return static_cast<float>(last);
  const double share = static_cast<double>(step - 1 - from) / static_cast<double>(steps - from);
  return static_cast<float>(last + (peak - last) * height(share));
}

}  // namespace detail

/// Cosine decay: last + (peak - last) (1 + cos(pi t)) / 2, where t is the share of the decay's steps that have passed.
/// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, equation 5, without restarts.
struct CosineSchedule {
  float peak = 0;            ///< highest rate
  std::uint64_t steps = 0;   ///< number of steps of the whole training
  std::uint64_t warmup = 0;  ///< number of these steps that are the warm-up
  float last = 0;            ///< rate after the last step

  float operator()(std::uint64_t step) const {
    return detail::scheduled_rate(static_cast<double>(peak), static_cast<double>(last), warmup, warmup, steps,
                                  step, [](double t) { return (1 + std::cos(std::numbers::pi * t)) / 2; });
  }
};

/// Linear decay: last + (peak - last) (1 - t).
struct LinearSchedule {
  float peak = 0;            ///< highest rate
  std::uint64_t steps = 0;   ///< number of steps of the whole training
  std::uint64_t warmup = 0;  ///< number of these steps that are the warm-up
  float last = 0;            ///< rate after the last step

  float operator()(std::uint64_t step) const {
    return detail::scheduled_rate(static_cast<double>(peak), static_cast<double>(last), warmup, warmup, steps,
                                  step, [](double t) { return 1 - t; });
  }
};

/// Constant rate at the peak, and linear decay over the last `decay` steps.
/// Source: Hagele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", NeurIPS 2024, section 3.
struct WarmupStableDecay {
  float peak = 0;            ///< highest rate
  std::uint64_t steps = 0;   ///< number of steps of the whole training
  std::uint64_t warmup = 0;  ///< number of these steps that are the warm-up
  std::uint64_t decay = 0;   ///< number of these steps that are the decay
  float last = 0;            ///< rate after the last step

  float operator()(std::uint64_t step) const {
    require(decay <= steps, "a schedule's decay is at most its steps", static_cast<double>(decay));
    return detail::scheduled_rate(static_cast<double>(peak), static_cast<double>(last), warmup, steps - decay,
                                  steps, step, [](double t) { return 1 - t; });
  }
};

}  // namespace terse
