// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

// How momentum that is kept as a velocity, in units of parameters, follows the learning rate.

namespace terse::detail {

// Finite, for a velocity may be 0.
inline constexpr float any_ratio = std::numeric_limits<float>::max();

/// Returns the largest ratio of two rates that a velocity follows in turn t = 1, 2, ..., of which a turn at a constant rate keeps `gain`.
/// Above 1 / gain it would grow of itself, and with it rounding and what differs between ranks, which no rate scales. At first it may
/// grow as in a linear warm-up, from 0 or from its first rate, which stays bounded.
inline float largest_ratio(bool follows_jumps, float gain, std::uint64_t t) {
  if (follows_jumps) return any_ratio;
  const float warm_up = t > 2 ? 1 + 1 / static_cast<float>(t - 2) : 3;
  return std::min(std::max(warm_up, 1 / gain), any_ratio);
}

/// Returns the rate that a velocity counts as of after several steps, the last of which had `rate`. Steps of before a drop are in it,
/// too, so that it falls by no more than 16: more than a usual drop by 10.
inline float rate_after(bool follows_jumps, float rate, std::uint64_t bits_of_last) {
  const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(bits_of_last));
  return follows_jumps || !(rate > 0) ? rate : std::max(rate, last / 16);
}

/// Returns this turn's rate over the last one's, which checkpoints take as its bits, as rule M follows it; 0 after 0.
template <class M>
float rate_ratio(const M& rule, float rate, std::uint64_t bits_of_last, std::uint64_t t) {
  const auto last = std::bit_cast<float>(static_cast<std::uint32_t>(bits_of_last));
  if (!(last > 0)) return 0;
  float largest = any_ratio;
  if constexpr (requires { rule.largest_ratio(t); }) largest = rule.largest_ratio(t);
  return std::min(rate / last, largest);
}

}  // namespace terse::detail
