// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/graph/concept.hpp"
#include "terse/optimizer/local/local_state.hpp"
#include "terse/optimizer/sorted.hpp"

namespace terse::detail {

/// Checks that inner recipe R, run on all ranks together, keeps the plain mean of the ranks' parameters.
template <class R>
constexpr bool check_inner_mean() {
  if constexpr (requires { typename decltype(Composed<R>::topology)::Graph; }) {
    using G = typename decltype(Composed<R>::topology)::Graph;
    static_assert(
        !graph::Traits<G>::push_sum || G::regular || graph::Traits<G>::unchecked,
        "terse: an outer step takes the plain mean, and push-sum weights on a graph where ranks have unequal "
        "numbers of neighbours keep another. Use a regular graph, such as OnePeerExponential");
  }
  return true;
}

/// Checks that this outer rule's messages may be sent by C, F and P: as exact means, or over the pairs of ranks for
/// which the rule is made.
template <class Rule, class C, class F, class P>
constexpr bool check_outer_means() {
  if constexpr (requires { requires std::is_same_v<P, typename Rule::Pairs>; }) {
    static_assert(C::lossless, "terse: partners send their parameters as they are: take Dense");
    return C::lossless;
  } else if constexpr (over_graph<Rule>()) {
    using G = typename P::Graph;
    static_assert(
        C::lossless,
        "terse: over a graph DiLoCo's ranks send their anchors, which don't become small: take Dense");
    static_assert(graph::Traits<G>::unchecked || (G::fixed && G::symmetric),
                  "terse: DiLoCo over a graph needs one that is fixed and symmetric, such as Gossip: with "
                  "outer momentum the "
                  "differences between ranks may grow on others. In random pairs use NoLoCo");
    return C::lossless;
  } else if constexpr (requires { requires Rule::keeps_errors; }) {
    constexpr bool forgets = std::is_base_of_v<NoErrorFeedback, F>;
    static_assert(forgets,
                  "terse: with this outer rule (TradeForMean, LateSign) the unsent part stays in the "
                  "parameters, and an error feedback (Residual) would send it twice: use OwnersResidual");
    constexpr bool own = !requires(P topology) { topology.outer; };
    static_assert(own,
                  "terse: with this outer rule (TradeForMean, LateSign) each rank keeps its own unsent part, "
                  "but a hierarchy sends one message for a whole node: use ScatterGather or AllGather");
    constexpr bool tells = !Traits<C>::own_round;
    static_assert(
        tells,
        "terse: this outer rule (TradeForMean, LateSign) needs the values that were sent, and compressors "
        "with their own round (LowRank, Select) don't report them: use TopK, a Chain or a quantizer");
    return forgets && own && tells && check_means<C, F, P>();
  } else {
    return check_means<C, F, P>() && check_own_errors<C, F>();
  }
}

/// Reports with a readable static_assert why this outer rule doesn't fit this recipe, schedule and topology.
template <class Inner, class Rule, class Schedule, class P>
constexpr bool check_meeting() {
  static_assert(
      !goes_around<Inner>() || (!Rule::follows_rate && !detail::follows_rate<Inner>()),
      "terse: nested local methods must not follow the learning rate (SlowMo and OverlapLocalSgd do; "
      "LocalSgd, Bmuf, DiLoCo and StreamingDiLoCo don't): a step has one ratio of learning rates");
  static_assert(
      !is_no_mean<P>() || !sends_models<Rule>(),
      "terse: this outer rule (PullBack, DelayCorrection) sends models, and Gathered merges moves. Take "
      "LateMomentum, or another topology");
  if constexpr (Schedule::late) {
    constexpr bool lands = requires { Rule::merges_as_it_sends; };
    static_assert(
        lands,
        "terse: this outer rule takes its mean at once (PlainAverage, OuterMomentum), and here means "
        "come late: take LateMomentum, TradeForMean, LateSign, PullBack or DelayCorrection");
    if constexpr (lands)
      static_assert(
          !Rule::merges_as_it_sends || std::is_same_v<Schedule, Overlapped>,
          "terse: this outer rule (PullBack, DelayCorrection, LateSign) merges a mean when it sends the next "
          "one: take Overlapped, or LateMomentum");
    static_assert(
        !evaluates_late<P>(),
        "terse: parameters change while their mean is under way, and this topology (Ring) reads its "
        "message again in each hop. Use ScatterGather");
  } else {
    static_assert(
        !requires { Rule::merges_as_it_sends; },
        "terse: this outer rule is for means that come late: take Overlapped or Streaming");
  }
  return true;
}

}  // namespace terse::detail
