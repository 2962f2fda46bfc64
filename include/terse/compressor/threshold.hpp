// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sparse.hpp"

namespace terse {

/// A selection of all values with magnitudes of at least `threshold`, but at most the `most_ratio` n largest; the
/// others stay in the error. The error of each element that fits is below the threshold: not a contraction, but a
/// bounded error.
/// Source: Strom, Interspeech 2015; Dutta et al., AAAI 2020.
struct AboveThreshold {
  using Reader = Positions::Reader;
  static constexpr bool variable = true;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = false;
  static constexpr bool tracks = true;

  float threshold = 1e-3F;  ///< > 0
  double most_ratio = 0.1;  ///< in (0, 1]; bounds message and memory

  void check() const {
    if (!(threshold > 0) || !is_finite(threshold))
      throw usage_error("threshold must be positive and finite, not " + std::to_string(threshold));
    detail::check_ratio("most_ratio", most_ratio);
  }
  static const char* unrecordable(const RecordUse&) {
    return "a compressor that picks by a threshold waits for the number of picks and can't be recorded";
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("threshold", static_cast<double>(threshold));
    visit("most_ratio", most_ratio);
  }
  TERSE_HD index_t most(index_t n) const { return detail::share_of(most_ratio, n); }
  float least() const { return threshold; }
  template <Executor E>
  index_t floats(E executor, index_t n) const {
    return select_scratch(executor, n, most(n));
  }
  static index_t words(index_t) { return 0; }
  TERSE_HD static index_t index_bytes(index_t n, index_t k) { return Positions::bytes(n, k); }
  static const char* fault(const std::byte* wire, index_t n, index_t k) {
    return Positions::fault(wire, n, k);
  }
  template <GridExecutor E>
  static Positions::List list(E executor, const Positions::Arrived& arrived, index_t n, index_t,
                              const StepDraw&, PickScratch<E> scratch, out<E, std::uint32_t> positions) {
    return Positions::list(executor, arrived, n, scratch, positions);
  }
  template <GridExecutor E>
  static void check(E executor, const Positions::Arrived& arrived, index_t n,
                    const Positions::Report& report) {
    Positions::check(executor, arrived, n, report);
  }

  template <Executor E>
  index_t select(E executor, in<E> values, index_t, const EncodeContext&, PickScratch<E> scratch,
                 out<E, std::uint32_t> positions, std::byte* wire) const {
    const index_t room = most(values.size());
    const index_t k = select_above(executor, values, threshold, scratch.floats, positions.part(0, room));
    // If all room is used, there may be more, and the lowest positions must not exclude the others forever.
    if (k == room) select_top(executor, values, k, scratch.floats, positions.part(0, k));
    Positions::write(executor, in<E, std::uint32_t>(positions.part(0, k)), values.size(), wire);
    return k;
  }
};

#ifndef Above  // a macro of X11
/// The old name, which version 0.2 removes.
using Above [[deprecated("its name is AboveThreshold")]] = AboveThreshold;
#endif

/// The values that reach a threshold, sent as fp32; packets vary in size. Wire: see TopK, and 8 bytes for the count.
template <Granularity G = PerSegment>
using Threshold = Sparse<AboveThreshold, Dense, G>;

}  // namespace terse
