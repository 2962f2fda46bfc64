// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terse/graph/pair_momentum.hpp"
#include "terse/graph/random_matching.hpp"
#include "terse/optimizer/local/local_updates.hpp"
#include "terse/topology/pairing.hpp"

namespace terse {

/// The outer step of ranks that meet in pairs, each with an anchor of its own. With D = anchor_i - mean of the pair's x,
///
///     v_i = momentum v_i + D        x_i = anchor_i - rate v_i, the next anchor
///
/// which is the paper's step with one gamma = rate: v is its momentum over -rate, and the mean of moves plus that of
/// anchors is a mean of parameters. Over an exact topology it is DiLoCo's without Nesterov. Refused, at construction and in
/// each meeting: a momentum with which what differs between the ranks grows in mean square, see graph::pair_momentum_growth.
/// At a rate of 0.7 it must be below 0.867 among 4 ranks, and below 0.806 among any number.
struct PairMomentum {
  static constexpr std::array<const char*, 2> state{"anchor", "outer_velocity"};
  static constexpr int from_start = 1;
  static constexpr bool follows_rate = false;
  using Pairs = Pairing<graph::RandomMatching>;

  float rate = 0.7F;      ///< of the outer step
  float momentum = 0.5F;  ///< of the outer step; bounded by the rate

  void check() const {
    check_rate("the outer rate", rate);
    check_beta("the outer momentum", momentum);
  }
  void check_pairs(int ranks) const {
    const double growth =
        graph::pair_momentum_growth(ranks, static_cast<double>(rate), static_cast<double>(momentum));
    if (growth >= 1)
      throw usage_error("among " + std::to_string(ranks) + " ranks in pairs an outer momentum of " +
                        std::to_string(momentum) + " at an outer rate of " + std::to_string(rate) +
                        " keeps what differs between the ranks from dying out: it grows by a factor of " +
                        std::to_string(growth) + " in each round. " + remedy());
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("outer_rate", static_cast<double>(rate));
    visit("outer_momentum", static_cast<double>(momentum));
  }
  template <Number P>
  static detail::ReadParameters<P> message(ParameterRef<P> x, OuterBuffers) {
    return {x};
  }
  template <Number P>
  detail::StepFromMean<P> arrive(ParameterRef<P> x, OuterBuffers own, const StepScalars* now,
                                 int ratio_at) const {
    return {x, {own.first, own.second, now, ratio_at, rate, momentum}};
  }

 private:
  /// Without momentum differences shrink at rates between 0 and 2 alone.
  std::string remedy() const {
    if (rate <= 0) return "Raise the rate: at 0 no rank takes up anything of its partner's";
    if (rate >= 2) return "Lower the rate: from 2 on not even a momentum of 0 is small enough";
    return "Lower the momentum: at a rate of 0.7, 0.5 is fine among any number";
  }
};

/// NoLoCo: DiLoCo without a mean of all. After every `period` steps of the inner recipe, alone on its rank, ranks meet in pairs
/// that all draw alike, from a seed and the step; each takes an outer step of its own, see PairMomentum. Where the number of
/// ranks is odd, one is its own partner.
///
///     NoLoCo<Adam<>>{.inner = {.learning_rate = 6e-4F}, .period = 50}
///
/// Ranks stay different; the model is their mean. State: the inner recipe's; anchor and velocity, n floats each, of each rank's
/// own. Wire: in each period-th step all parameters in fp32, to one partner, whatever the number of ranks. Passes beside the
/// inner recipe's, in such a step: one to send, one to step.
///
/// Source: Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, "NoLoCo: no-all-reduce low communication training method for large
/// models", 2025 (arXiv 2506.10911).
template <class Inner>
using NoLoCo = LocalUpdatesOf<Inner, PairMomentum, AllAtOnce, Inside::alone, Dense, NoErrorFeedback,
                              PairMomentum::Pairs>;

}  // namespace terse
