// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "terse/compressor/packed.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/executor/sinks.hpp"
#include "terse/executor/streams.hpp"

// Errors that are computed when they are read. With Residual e = y - C(y); if codes don't depend on the scale, C(y) follows from y and
// its unit's scale. So the last message y may stay in memory until the next one is computed from it. This saves a pass: two of the ten
// streams of n floats that a step of 1-bit Adam moves.

namespace terse::detail {

/// Compressors with one scale per segment or one for all, whose codes don't depend on it.
template <class C>
struct CodesWithoutScale : std::false_type {};
template <class Q, Granularity G>
requires std::is_same_v<typename Q::CodesWithoutScale, Q>
struct CodesWithoutScale<Packed<Q, G>>
    : std::bool_constant<Packed<Q, G>::measured && !Q::stochastic && Q::bits < 8 &&
                         !std::is_empty_v<typename Q::Statistic::Scale>> {
};

template <class C, class F>
constexpr bool has_late_errors() {
  return std::is_same_v<F, Residual> && CodesWithoutScale<C>::value;
}
/// Functors whose samples can be coded by E's `reduce`: on a device these are functors that name their streams.
template <class F, class E>
concept CodedBy = !GridExecutor<E> || NamesStreams<F>;

TERSE_NUMERICS_BEGIN

/// Residual's view with y stored in place of e. Masked elements, whose error is 0, hold NaN, a value that no message has.
template <class Q>
struct LateView : Residual::View {
  using StreamsOf = LateView;
  using Scale = typename Q::Statistic::Scale;
  const Scale* scales = nullptr;  // of the last round, one for each segment, starting at segment `first`
  index_t first = 0;
  typename CoderOf<Q>::type coder{Scale{}};

  TERSE_HD void enter(const Piece& piece) { coder = scales[piece.segment - first]; }
  /// Returns the error; for a unit whose scale is 0 it is the stored value.
  TERSE_HD float error(index_t i) const {
    const float last = load(i);
    return keep_if(!(last != last), last - coder(last, 0).value);
  }
  TERSE_HD float compensate(index_t i, float message) const {
    return keep_if(!hold, message) + weight * error(i);
  }
  TERSE_HD void keep(index_t i, bool kept, float message) const {
    store(i, keep_if(kept, message, std::numeric_limits<float>::quiet_NaN()));
  }
};

/// Replaces y by e.
template <class Q>
struct SettleErrors {
  LateView<Q> errors;
  TERSE_HD void enter(const Piece& piece) { errors.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i) const { errors.store(i, errors.error(i)); }
};

TERSE_NUMERICS_END

/// A codec's memory for late errors: the codes of a round between measuring and encoding, and its scales until the next round.
template <class C, Executor E>
class LateErrors {
  using Q = typename C::Quantizer;
  using Scale = typename C::Scale;

 public:
  TERSE_COLD explicit LateErrors(const Range& covered)
      : begin_(covered.begin_offset()),
        codes_((covered.end_offset() - begin_) / 8 * Q::bits, uninitialized),
        first_(covered.pieces().front().segment),
        scales_(covered.pieces().back().segment - first_ + 1) {}

  /// Checks whether each segment has one piece.
  static bool can_cover(const Range& covered) {
    const std::vector<Piece>& pieces = covered.pieces();
    return !pieces.empty() &&
           std::adjacent_find(pieces.begin(), pieces.end(), [](const Piece& one, const Piece& next) {
             return one.segment >= next.segment;
           }) == pieces.end();
  }

  /// Returns the state's view, for `measure`.
  LateView<Q> errors(const Residual::View& state) const { return {state, scales_.data(), first_}; }
  CodeSamples<Q> samples() { return {codes_.data(), begin_}; }
  /// Called after `measure`: the state contains messages, whose scales are recorded when they are encoded.
  void measured(bool hold) {
    hold_ = hold;
    settled_ = false;
    coded_ = true;
  }
  bool coded() const { return coded_; }
  MeasuredCodes<Q::bits, Scale> codes() { return {codes_.data(), begin_, scales_.data(), first_, hold_}; }

  /// Replaces messages by errors in the state, as if errors had been written in each round.
  void settle(const E& executor, const Range& covered, const Residual::View& state) {
    coded_ = false;
    if (settled_) return;
    for_each(executor, covered, SettleErrors<Q>{errors(state)});
    fill(executor, scales_.all(), Scale{});
    // On a device, replays of a record don't run this.
    settled_ = !GridExecutor<E>;
  }

 private:
  index_t begin_;
  buffer<std::byte, typename E::memory> codes_;
  index_t first_;  // first segment
  buffer<Scale, typename E::memory> scales_;
  bool settled_ = true, coded_ = false, hold_ = false;
};

}  // namespace terse::detail
