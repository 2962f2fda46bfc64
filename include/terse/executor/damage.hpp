// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"

// How the host's verbs find values in packets that are not finite, see Packets::damage: block by block of 64 lanes, while the
// sums are in cache.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Whether one of a block's values is of a magnitude above `most`, or no number.
TERSE_INLINE bool any_beyond(float most, const float* values, int count) {
  std::uint32_t beyond = 0;
  TERSE_LANES
  for (int l = 0; l < count; ++l) beyond |= static_cast<std::uint32_t>(!(magnitude(values[l]) <= most));
  return beyond != 0;
}
TERSE_INLINE bool any_beyond(float most, const float (&values)[lanes], int count) {
  return count == lanes ? any_beyond(most, &values[0], lanes) : any_beyond(most, &values[0], count);
}
/// What is not finite by the value of a source, value(k, l), counts as 0 in the sums, see Packets::damage.
template <class Code, class Value>
TERSE_COLD TERSE_NO_INLINE void judge(const Packets<Code>& packets, float (&sums)[lanes], int count,
                                      Value value) {
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
