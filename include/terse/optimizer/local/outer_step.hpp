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
/// In the place of a setting that a policy has not.
struct NoSetting {};
}  // namespace detail

/// Who the outer step is named after; they differ in what they add to one and the same step.
enum class OuterKind { slow_mo, classical_block, nesterov_block, di_lo_co };

/// The two points of an outer step with momentum, from which parameters for evaluation can be read: where it stands, and
/// where its momentum alone would take it. Those with Nesterov step on from the point ahead, the others from the current.
enum class ReadOut { current, look_ahead };

// The outer rule of a local method says what ranks send and what becomes of the mean:
//
//     state                                  names of the buffers that it keeps, of n floats each, at most two
//     from_start                             how many of them, the first ones, begin as the initial parameters; others as 0
//     follows_rate                           whether it depends on how the learning rate has changed since the last meeting
//     message(x, own)                        what this rank sends
//     sends_models                           optional: whether that is a model, which has a mean and no other merge, not a move
//     whole_message(x, own)                  optional: the same of segments that are not compressed
//     keeps_errors                           optional: whether what is not sent stays in the parameters, and no error feedback
//                                            may keep it, too
//     steps_apart                            optional: whether the inner recipe steps on the second buffer, which starts at 0, and
//                                            only `merge` moves the parameters
//     weight_decay                           optional, a number: the rule takes own.rates, the learning rate and this decay times
//                                            each segment's scales, as they were when it last merged
//     Pairs, check_pairs(ranks)              optional: the one topology without an exact mean that it goes over; throws
//                                            usage_error where it can't work there among so many
//     arrive(x, own, now, ratio_at)          where nobody goes on before the mean is there (AllAtOnce): its consumer
//     land(own, now, ratio_at)               where it is late: its consumer, which knows no parameters
//     merge(x, own, now, ratio_at)           and how it enters them later, element by element
//     merges_as_it_sends                     of late ones: whether they merge when they send the next one, at first the
//                                            initial parameters
//     largest_ratio(t), follows_jumps        of those that follow the rate: the largest ratio in the t-th meeting; whether it has
//                                            no bounds
//
// now->own[ratio_at] is this step's learning rate over that of the last meeting, within these bounds, or 1.

/// The outer step of local methods. With D = anchor - mean_i x_i, how the ranks have moved since the last one,
///
///     v = momentum r v + D        x = anchor - rate v, or with Nesterov anchor - rate (D + momentum v)
///
/// and x is the next anchor. r is 1 or, for SlowMo, the ratio of this learning rate to that of the last outer step:
/// its u = v / learning_rate is kept in units of the gradient. Nothing is divided by a rate that may be 0. Where the rate jumps, r
/// counts as 1 / momentum, or as the ratio of a linear warm-up, at most, above which v would grow of itself, and as 1/16 at least, since steps of before a drop are in D.
///
///     SlowMo                 rate = alpha, momentum = beta, r
///     BMUF, classical        rate = zeta, momentum = eta; at a constant learning rate the same as SlowMo
///     BMUF, Nesterov         rate = zeta, momentum = eta, Nesterov; x is the point ahead, and the model in the end the
///                            current one, see ReadOut
///     DiLoCo                 the same with other defaults
///
/// Sources: Wang et al., "SlowMo", ICLR 2020, algorithm 1; Chen and Huo, "Scalable training of deep learning machines
/// by incremental block training", ICASSP 2016; Douillard et al., "DiLoCo", 2023, algorithm 1.
template <OuterKind Kind>
struct OuterMomentum {
  static constexpr std::array<const char*, 2> state{"anchor", "outer_velocity"};
  static constexpr int from_start = 1;
  static constexpr bool nesterov = Kind == OuterKind::nesterov_block || Kind == OuterKind::di_lo_co;
  static constexpr bool follows_rate = Kind == OuterKind::slow_mo;

  float rate = Kind == OuterKind::di_lo_co ? 0.7F : 1;        ///< of the outer step
  float momentum = Kind == OuterKind::slow_mo ? 0.5F : 0.9F;  ///< of the outer step; in [0, 1)
  /// SlowMo's alone, a bool: whether r has no bounds where the rate jumps, as in the paper.
  std::conditional_t<follows_rate, bool, detail::NoSetting> follows_jumps{};

  void check() const {
    check_rate("the outer rate", rate);
    check_beta("the outer momentum", momentum);
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
  /// How far along the velocity a point lies from the anchor.
  float ahead(ReadOut which) const {
    if (nesterov) return which == ReadOut::current ? rate * momentum : 0;
    return which == ReadOut::look_ahead ? -rate * momentum : 0;
  }
};

/// An outer step along the mean move, without momentum: x = anchor - rate D, the next anchor. What SparseLoCo does.
struct OuterDescent {
  static constexpr std::array<const char*, 1> state{"anchor"};
  static constexpr int from_start = 1;
  static constexpr bool follows_rate = false;

  float rate = 1;  ///< of the outer step

  void check() const { check_rate("the outer rate", rate); }
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

/// The outer step of Local SGD: x = mean_i x_i. No state; with a compressor, and over Gathered, ranks send how they moved, from an
/// anchor.
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

template <class Outer, class C, class P>
struct OuterRule {
  using type = Outer;
};
template <class Outer, class C, class P>
requires((!C::lossless || is_no_mean<P>()) &&
         requires { typename Outer::OfMoves; }) struct OuterRule<Outer, C, P> {
  using type = typename Outer::OfMoves;
};
/// What the outer step runs as where messages travel by compressor C over topology P.
template <class Outer, class C, class P>
using OuterRuleOf = typename OuterRule<Outer, C, P>::type;

/// Whether its messages are models, not moves.
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

}  // namespace detail

}  // namespace terse
