// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"

// How the host's verbs find values in packets that are not finite, see Packets::damage: block by block of 64 lanes, while the
// sums are in cache.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Whether one of a block's values is not finite. Where all are below 2 in magnitude, which takes one instruction to know of as
/// many as it holds, none is.
TERSE_INLINE bool any_beyond(const float* values) {
  std::uint32_t bits = 0, beyond = 0;
  TERSE_LANES
  for (int l = 0; l < lanes; ++l) bits |= std::bit_cast<std::uint32_t>(values[l]);
  if ((bits & std::bit_cast<std::uint32_t>(2.0F)) == 0) return false;
  TERSE_LANES
  for (int l = 0; l < lanes; ++l) beyond |= static_cast<std::uint32_t>(!is_finite(values[l]));
  return beyond != 0;
}
/// What is not finite by the value of a source, value(k, l), counts as 0 in the sums, see Packets::damage.
template <class Code, class Value>
TERSE_COLD void judge(const Packets<Code>& packets, float* sums, int count, Value value) {
  for (int l = 0; l < count; ++l) {
    if (magnitude(sums[l]) <= largest_sum(packets.count)) continue;
    for (int k = 0; k < packets.count; ++k)
      if (!is_finite(value(k, l))) {
        *packets.damage = std::min<std::uint64_t>(*packets.damage, packets.sources[k].origin);
        sums[l] = 0;
      }
  }
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
