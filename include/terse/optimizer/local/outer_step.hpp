// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "terse/momentum_correction/rate_ratio.hpp"
#include "terse/optimizer/local/outer_functors.hpp"
#include "terse/optimizer/policies.hpp"

namespace terse {

namespace detail {
/// A placeholder for a setting that a policy lacks.
struct NoSetting {};
}  // namespace detail

/// The method that gives an outer step its name. All share one step; each adds terms to it.
enum class OuterKind { slow_mo, classical_block, nesterov_block, di_lo_co };

/// The points of an outer step with momentum from which evaluation parameters can be read: the current point, and the
/// point to which its momentum alone would move it. Methods with Nesterov momentum step from the latter, the others
/// from the current point.
enum class ReadOut { current, look_ahead };

// The outer rule of a local method defines the ranks' messages and the use of their mean:
//
//     state                                  names of the buffers of n floats that it keeps, at most two
//     from_start                             number of these, the first ones, that start as the initial parameters; others start as 0
//     follows_rate                           true if it depends on the change of the learning rate since the last meeting
//     message(x, own)                        this rank's message
//     sends_models                           optional: true if the message is a model, not a move; models can be averaged, not merged
//                                            in any other way
//     whole_message(x, own)                  optional: the message of segments that are not compressed
//     keeps_errors                           optional: true if the unsent part stays in the parameters, so that no error feedback may
//                                            keep it as well
//     steps_apart                            optional: true if the inner recipe steps on the second buffer, which starts at 0, and
//                                            only `merge` moves the parameters
//     weight_decay                           optional, a number: the rule takes own.rates, the learning rate and this decay times
//                                            each segment's scales, as they were when it last merged
//     Pairs, check_pairs(ranks)              optional: the one topology without an exact mean that it supports; throws
//                                            usage_error if it can't work there with so many ranks
//     arrive(x, own, now, ratio_at)          if ranks wait for the mean (Synchronous): its consumer
//     land(own, now, ratio_at)               if the mean is late: its consumer, which has no access to the parameters
//     merge(x, own, now, ratio_at)           if the mean is late: enters it into the parameters later, element by element
//     shared                                 if the mean is late, for carry_over: number of the buffers, the first ones, that are equal on
//                                            all ranks
//     without_mean(own)                      optional, if the mean is late: the functor of a round whose mean is lost with a rank. Later
//                                            rounds must contain its local steps
//     merges_as_it_sends                     if the mean is late: true if it merges when the next message is sent; the first merge
//                                            takes the initial parameters
//     largest_ratio(t), follows_jumps        if it follows the rate: the largest ratio in the t-th meeting; true if the ratio has
//                                            no bounds
//
// now->own[ratio_at] is this step's learning rate over that of the last meeting, within these bounds, or 1.

/// The outer step of local methods. Let D = anchor - mean_i x_i be the mean move of the ranks since the last outer
/// step:
///
///     v = momentum r v + D        x = anchor - rate v, or with Nesterov anchor - rate (D + momentum v)
///
/// and x is the next anchor. r is 1, or for SlowMo the ratio of this learning rate to that of the last outer step.
/// SlowMo keeps u = v / learning_rate, in units of the gradient. No value is divided by a rate, which may be 0. If
/// the rate jumps, r is at most 1 / momentum, or the ratio of a linear warm-up. Above that v would grow by itself.
/// It is at least 1/16, since D contains steps from before a drop.
///
///     SlowMo                 rate = alpha, momentum = beta, r
///     BMUF, classical        rate = zeta, momentum = eta; at a constant learning rate the same as SlowMo
///     BMUF, Nesterov         rate = zeta, momentum = eta, Nesterov; x is the point ahead, and the final model the current
///                            one, see ReadOut
///     DiLoCo                 as BMUF with Nesterov, with other defaults
///
/// Sources: Wang et al., "SlowMo", ICLR 2020, algorithm 1; Chen and Huo, "Scalable training of deep learning machines
/// by incremental block training", ICASSP 2016; Douillard et al., "DiLoCo", 2023, algorithm 1.
template <OuterKind Kind>
struct OuterMomentum {
  static constexpr std::array<const char*, 2> state{"anchor", "outer_velocity"};
  static constexpr int from_start = 1;
  static constexpr bool nesterov = Kind == OuterKind::nesterov_block || Kind == OuterKind::di_lo_co;
  static constexpr bool follows_rate = Kind == OuterKind::slow_mo;

  float rate = Kind == OuterKind::di_lo_co ? 0.7F : 1;        ///< outer learning rate
  float momentum = Kind == OuterKind::slow_mo ? 0.5F : 0.9F;  ///< outer momentum; in [0, 1)
  /// For SlowMo only, a bool: true removes the bounds of r, as in the paper, for rates that jump.
  std::conditional_t<follows_rate, bool, detail::NoSetting> follows_jumps{};

  void check() const {
    detail::check_rate("the outer rate", rate);
    detail::check_beta("the outer momentum", momentum);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("outer_rate", static_cast<double>(rate));
    visit("outer_momentum", static_cast<double>(momentum));
    if constexpr (follows_rate) visit("follows_jumps", follows_jumps ? 1.0 : 0.0);
  }
  float largest_ratio(std::uint64_t t) const requires follows_rate {
    return detail::largest_ratio(follows_jumps, momentum, t);
  }
  template <Number P>
  static detail::Move<P> message(ParameterRef<P> x, OuterBuffers own) {
    return {x, own.first};
  }
  template <Number P>
  detail::StepOutside<P, nesterov> arrive(ParameterRef<P> x, OuterBuffers own, const StepScalars* now,
                                          int ratio_at) const {
    return {x, {own.first, own.second, now, ratio_at, rate, momentum}};
  }
  /// Returns the offset of a point from the anchor, as a multiple of the velocity.
  float ahead(ReadOut which) const {
    if (nesterov) return which == ReadOut::current ? rate * momentum : 0;
    return which == ReadOut::look_ahead ? -rate * momentum : 0;
  }
};

/// The outer step along the mean move without momentum: x = anchor - rate D, the next anchor. SparseLoCo uses it.
struct OuterDescent {
  static constexpr std::array<const char*, 1> state{"anchor"};
  static constexpr int from_start = 1;
  static constexpr bool follows_rate = false;

  float rate = 1;  ///< outer learning rate

  void check() const { detail::check_rate("the outer rate", rate); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("outer_rate", static_cast<double>(rate));
  }
  template <Number P>
  static detail::Move<P> message(ParameterRef<P> x, OuterBuffers own) {
    return {x, own.first};
  }
  template <Number P>
  detail::MoveAnchor<P> arrive(ParameterRef<P> x, OuterBuffers own, const StepScalars*, int) const {
    return {x, own.first, rate};
  }
};

/// The outer step of Local SGD: x = mean_i x_i. No state. With a compressor, and over Gathered, ranks send their
/// moves from an anchor instead.
struct PlainAverage {
  static constexpr std::array<const char*, 0> state{};
  static constexpr int from_start = 0;
  static constexpr bool follows_rate = false;

  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  template <Number P>
  static detail::ReadParameters<P> message(ParameterRef<P> x, OuterBuffers) {
    return {x};
  }
  template <Number P>
  static detail::TakeMean<P> arrive(ParameterRef<P> x, OuterBuffers, const StepScalars*, int) {
    return {x};
  }
  struct OfMoves;
};

struct PlainAverage::OfMoves : OuterDescent {
  OfMoves() = default;
  explicit OfMoves(const PlainAverage&) {}
};

namespace detail {

/// DiLoCo's outer step over a mixing graph, where each rank i has its own anchor. Let y_i be the anchor, moved by a share `rate`
/// of this rank's move and then mixed with those of its neighbours:
///
///     y_i = sum_j W_ij (anchor_j + rate (x_j - anchor_j))
///     v_i = momentum v_i + anchor_i - y_i        x_i = anchor_i - ((anchor_i - y_i) + momentum v_i), the next anchor
///
/// so that x_i is y_i plus momentum times the change of y_i since the last meeting. v contains the rate, in contrast to OuterMomentum's
/// v. If W is the plain mean, this is OuterMomentum's step. Without moves, an eigenvalue lambda of W contributes the roots of
///
///     z^2 - (1 + momentum) lambda z + momentum lambda
///
/// which for real lambda below 1 are inside the unit circle if lambda > -1 / (1 + 2 momentum).
struct GraphMomentum {
  static constexpr std::array<const char*, 2> state{"anchor", "outer_velocity"};
  static constexpr int from_start = 1;
  static constexpr bool follows_rate = false, over_graph = true;

  float rate, momentum;

  explicit GraphMomentum(const OuterMomentum<OuterKind::di_lo_co>& outer)
      : rate(outer.rate), momentum(outer.momentum) {}
  double eigenvalues_above() const { return -1 / (1 + 2 * static_cast<double>(momentum)); }
  template <Number P>
  MovedAnchor<P> message(ParameterRef<P> x, OuterBuffers own) const {
    return {x, own.first, rate};
  }
  template <Number P>
  StepFromMixture<P> arrive(ParameterRef<P> x, OuterBuffers own, const StepScalars* now, int ratio_at) const {
    return {x, {own.first, own.second, now, ratio_at, 1, momentum}};
  }
  float ahead(ReadOut which) const { return which == ReadOut::current ? momentum : 0; }
};

/// Checks whether an outer rule steps towards a mixture of neighbours.
template <class Rule>
constexpr bool over_graph() {
  return requires { Rule::over_graph; };
}

template <class Outer, class C, class P>
struct OuterRule {
  using type = Outer;
};
template <class C, class P>
requires requires { typename P::Graph; }
struct OuterRule<OuterMomentum<OuterKind::di_lo_co>, C, P> {
  using type = GraphMomentum;
};
template <class Outer, class C, class P>
requires((!C::lossless || is_no_mean<P>()) &&
         requires { typename Outer::OfMoves; }) struct OuterRule<Outer, C, P> {
  using type = typename Outer::OfMoves;
};
/// The outer rule for messages by compressor C over topology P.
template <class Outer, class C, class P>
using OuterRuleOf = typename OuterRule<Outer, C, P>::type;

/// Checks whether the rule's messages are models, not moves.
template <class Rule>
constexpr bool sends_models() {
  if constexpr (requires { Rule::sends_models; }) return Rule::sends_models;
  return false;
}

template <class Rule>
constexpr bool steps_apart() {
  if constexpr (requires { Rule::steps_apart; }) return Rule::steps_apart;
  return false;
}
template <class Rule>
constexpr bool takes_rates() {
  return requires(const Rule& rule) { rule.weight_decay; };
}

template <class Rule>
constexpr bool merges_as_it_sends() {
  if constexpr (requires { Rule::merges_as_it_sends; }) return Rule::merges_as_it_sends;
  return false;
}

template <class Rule>
concept EndsWithoutMean = requires(OuterBuffers own) {
  Rule::without_mean(own);
};

}  // namespace detail

}  // namespace terse
