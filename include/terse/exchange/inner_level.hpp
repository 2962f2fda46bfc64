// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "terse/exchange/spread_share.hpp"
#include "terse/topology/within.hpp"

// Properties of Hierarchical's inner level, which the inner topology determines.

namespace terse::detail {

/// The topology and the compression of messages within a node.
template <class Inner>
struct InsideOf {
  using Way = Inner;
  using Code = Dense;
  using Feedback = NoErrorFeedback;
  static Way way(const Inner& inner) { return inner; }
  static Code code(const Inner&) { return {}; }
  static Feedback feedback(const Inner&) { return {}; }
  static Plan plan(const Plan& plan, const Inner&, bool note) { return plan.in_full_precision(note); }
};
template <class C, class F, class Back>
struct InsideOf<Within<C, F, Back>> {
  using Way = ScatterGather;
  using Code = C;
  using Feedback = F;
  static Way way(const Within<C, F, Back>&) { return {}; }
  static const Code& code(const Within<C, F, Back>& inner) { return inner.compressor; }
  static const Feedback& feedback(const Within<C, F, Back>& inner) { return inner.error_feedback; }
  static Plan plan(const Plan& plan, const Within<C, F, Back>& inner, bool note) {
    return plan.by(inner.compressor, note);
  }
};

/// The way back to a node's ranks, if it isn't the second half of the same round.
template <class Inner, class E>
struct BackOf {
  template <class... Parts>
  explicit BackOf(const Inner&, const Plan&, Parts&&...) {}
};
template <class C, class F, class Back, class E>
struct BackOf<Within<C, F, Back>, E> : SpreadShare<Back, E> {
  BackOf(const Within<C, F, Back>& inner, const Plan& plan, E executor, Channel& channel,
         Envelope<E>& envelope, const Layout& layout, RankNames names)
      : SpreadShare<Back, E>(executor, channel, envelope, inner.back, layout, plan.by(inner.back, false),
                             names) {}
};

}  // namespace terse::detail
