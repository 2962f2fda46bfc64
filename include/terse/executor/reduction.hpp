// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <limits>

#include "terse/executor/atomic.hpp"
#include "terse/executor/concept.hpp"

// Parts of reductions that all executors share.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// A statistic whose components can't be joined one by one: join(a, b) takes arrays of all components and joins b into
/// a.
template <class Statistic>
concept JoinsTogether = Statistic::joins_together;
template <class Statistic>
concept JoinsOneByOne = requires(float x) {
  { Statistic::join(x, x) } -> std::same_as<float>;
};

/// Joins a statistic's components at `from` into those at `to`. Strides are the floats from one component to the next.
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
/// Joins partial results, including the count of values that were not finite.
template <class Statistic>
TERSE_HD TERSE_INLINE void join_results(float* to, index_t to_stride, const float* from,
                                        index_t from_stride) {
  join_terms<Statistic>(to, to_stride, from, from_stride);
  to[Statistic::width * to_stride] += from[Statistic::width * from_stride];
}
/// Sets the terms of an element that doesn't take part to values without effect.
template <class Statistic>
TERSE_HD TERSE_INLINE void keep_terms_if(bool keep, float (&term)[Statistic::width]) {
  TERSE_UNROLL
  for (int c = 0; c < Statistic::width; ++c) term[c] = keep_if(keep, term[c], Statistic::initial);
}

/// Returns the initial value of component c.
template <class Statistic>
TERSE_HD constexpr float initial_component(int c) {
  return c < Statistic::width ? static_cast<float>(Statistic::initial) : 0.0F;
}

/// Returns a unit's scale from its totals, of which [width] is the count of values that were not finite. Totals that
/// overflowed give the scale of an empty unit. `*bad` becomes 1 if totals overflowed or if the count isn't 0.
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
