// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

// Rescaling, when the learning rate changes, of momentum that is kept as a velocity, in units of parameters.

namespace terse::detail {

// Finite, because a velocity may be 0.
inline constexpr float any_ratio = std::numeric_limits<float>::max();

/// Returns the upper bound of the ratio of two learning rates by which a velocity is rescaled in turn t = 1, 2, ... At a constant rate a
/// turn multiplies the velocity by `gain`. With a ratio above 1 / gain the velocity would grow by itself. So would rounding errors and
/// differences between ranks, which don't scale with the rate. In the first turns the ratio may be that of a linear warm-up, from 0 or from
/// its first rate, in which the velocity stays bounded.
inline float largest_ratio(bool follows_jumps, float gain, std::uint64_t t) {
  if (follows_jumps) return any_ratio;
  const float warm_up = t > 2 ? 1 + 1 / static_cast<float>(t - 2) : 3;
  return std::min(std::max(warm_up, 1 / gain), any_ratio);
}

/// Returns the learning rate to which a velocity corresponds after several steps, the last of which had `rate`. The velocity contains
/// steps from before a drop, so the returned rate falls by a factor of at most 16, which is more than a usual drop by 10.
inline float rate_after(bool follows_jumps, float rate, std::uint64_t bits_of_last) {
  const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(bits_of_last));
  return follows_jumps || !(rate > 0) ? rate : std::max(rate, last / 16);
}

/// Returns this turn's learning rate over the last one's, bounded as rule M requires, or 0 after 0. Checkpoints keep the last rate
/// as its bits.
template <class M>
float rate_ratio(const M& rule, float rate, std::uint64_t bits_of_last, std::uint64_t t) {
  const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(bits_of_last));
  if (!(last > 0)) return 0;
  float largest = any_ratio;
  if constexpr (requires { rule.largest_ratio(t); }) largest = rule.largest_ratio(t);
  return std::min(rate / last, largest);
}

}  // namespace terse::detail
