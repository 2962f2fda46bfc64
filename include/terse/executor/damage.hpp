// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "terse/executor/atomic.hpp"
#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"

// Detection of values in packets that are not finite, for the host's verbs, see Packets::damage: block by block of 64
// lanes, while the sums are in cache.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The number of elements that are checked together. The check is in a separate function, so that the loop over
/// blocks calls nothing. The number is so small that the elements are still in cache when they are read.
inline constexpr index_t looked_at_together = 4 * lanes;

/// Checks whether all of `count` values, a multiple of 64, are finite. First it tests whether all are below 2 in
/// magnitude, which takes one instruction per vector.
TERSE_NO_INLINE inline bool all_finite(const float* values, index_t count) {
  const index_t quarter = count / 4;
  const auto bits_of = [&](index_t i) { return std::bit_cast<std::uint32_t>(values[i]); };
  std::uint32_t bits = 0, beyond = 0;
  TERSE_LANES
  for (index_t i = 0; i < quarter; ++i)
    bits |= bits_of(i) | bits_of(i + quarter) | bits_of(i + 2 * quarter) | bits_of(i + 3 * quarter);
  if ((bits & std::bit_cast<std::uint32_t>(2.0F)) == 0) return true;
  TERSE_LANES
  for (index_t i = 0; i < count; ++i) beyond |= static_cast<std::uint32_t>(!is_finite(values[i]));
  return beyond == 0;
}
/// Sets a sum that is not finite to 0 if the value of a source, value(k, l), isn't finite, and records that source,
/// see Packets::damage.
template <class Code, class Value>
TERSE_COLD void judge(const Packets<Code>& packets, float* sums, int count, Value value) {
  for (int l = 0; l < count; ++l) {
    if (magnitude(sums[l]) <= largest_sum(packets.count)) continue;
    for (int k = 0; k < packets.count; ++k)
      if (!is_finite(value(k, l))) {
        atomic_lower(packets.damage, packets.sources[k].origin);
        sums[l] = 0;
      }
  }
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
