// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "terse/executor/atomic.hpp"
#include "terse/executor/concept.hpp"

// What reductions share, whichever executor runs them.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Component c of two partial results becomes one; behind the statistic's own stands the count of what was not
/// finite.
template <class Statistic>
TERSE_HD float join_component(int c, float a, float b) {
  return c < Statistic::width ? Statistic::join(a, b) : a + b;
}

/// What component c starts from.
template <class Statistic>
TERSE_HD constexpr float initial_component(int c) {
  return c < Statistic::width ? static_cast<float>(Statistic::initial) : 0.0F;
}

/// The scale that follows from a unit's totals, [width] the count of what was not finite. Totals that overflowed give
/// the scale of an empty unit, and `bad` becomes 1.
template <class Statistic>
TERSE_HD typename Statistic::Scale finish_unit(const float* totals, index_t count, std::uint32_t* bad) {
  bool finite = true;
  for (int c = 0; c < Statistic::width; ++c)
    finite = finite && magnitude(totals[c]) <= std::numeric_limits<float>::max();
  if (totals[Statistic::width] != 0 || (count > 0 && !finite)) atomic_raise(bad);
  return Statistic::finish(totals, finite ? count : 0);
}

TERSE_NUMERICS_END

}  // namespace terse::detail
