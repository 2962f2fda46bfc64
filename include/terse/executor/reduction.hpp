// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <limits>

#include "terse/executor/atomic.hpp"
#include "terse/executor/concept.hpp"

// What reductions share, whichever executor runs them.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Statistics whose components can't be joined one by one: join(a, b) makes of all of a, an array, all of a and b.
template <class Statistic>
concept JoinsTogether = Statistic::joins_together;
template <class Statistic>
concept JoinsOneByOne = requires(float x) {
  { Statistic::join(x, x) } -> std::same_as<float>;
};

/// A statistic's components at `to` become those joined with the ones at `from`; components are so many floats from each other.
template <class Statistic>
TERSE_HD TERSE_INLINE void join_terms(float* to, index_t to_stride, const float* from, index_t from_stride) {
  if constexpr (JoinsTogether<Statistic>) {
    float a[Statistic::width], b[Statistic::width];
    TERSE_UNROLL
    for (int c = 0; c < Statistic::width; ++c) {
      a[c] = to[c * to_stride];
      b[c] = from[c * from_stride];
    }
    Statistic::join(a, b);
    TERSE_UNROLL
    for (int c = 0; c < Statistic::width; ++c) to[c * to_stride] = a[c];
  } else {
    TERSE_UNROLL
    for (int c = 0; c < Statistic::width; ++c)
      to[c * to_stride] = Statistic::join(to[c * to_stride], from[c * from_stride]);
  }
}
/// The same of partial results, with the count of what was not finite.
template <class Statistic>
TERSE_HD TERSE_INLINE void join_results(float* to, index_t to_stride, const float* from,
                                        index_t from_stride) {
  join_terms<Statistic>(to, to_stride, from, from_stride);
  to[Statistic::width * to_stride] += from[Statistic::width * from_stride];
}
/// The terms of an element that doesn't take part leave no trace.
template <class Statistic>
TERSE_HD TERSE_INLINE void keep_terms_if(bool keep, float (&term)[Statistic::width]) {
  TERSE_UNROLL
  for (int c = 0; c < Statistic::width; ++c) term[c] = keep_if(keep, term[c], Statistic::initial);
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
