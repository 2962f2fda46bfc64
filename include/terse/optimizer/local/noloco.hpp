// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terse/graph/pair_momentum.hpp"
#include "terse/graph/random_matching.hpp"
#include "terse/optimizer/local/local_updates.hpp"
#include "terse/topology/pairing.hpp"

namespace terse {

/// The outer step of ranks that meet in pairs, each with a separate anchor. Let D = anchor_i - mean of the pair's x:
///
///     v_i = momentum v_i + D        x_i = anchor_i - rate v_i, the next anchor
///
/// This is the paper's step with one gamma = rate. v is the paper's momentum over -rate, and the mean of moves plus
/// the mean of anchors is a mean of parameters. Over an exact topology it is DiLoCo's step without Nesterov.
/// Construction and each meeting refuse a momentum for which the differences between ranks grow in mean square, see
/// graph::pair_momentum_growth. At a rate of 0.7 it must be below 0.867 for 4 ranks, and below 0.806 for any number
/// of ranks.
struct PairMomentum {
  static constexpr std::array<const char*, 2> state{"anchor", "outer_velocity"};
  static constexpr int from_start = 1;
  static constexpr bool follows_rate = false;
  using Pairs = Pairing<graph::RandomMatching>;

  float rate = 0.7F;      ///< outer learning rate
  float momentum = 0.5F;  ///< outer momentum; the rate sets its upper bound

  void check() const {
    detail::check_rate("the outer rate", rate);
    detail::check_beta("the outer momentum", momentum);
  }
  void check_pairs(int ranks) const {
    const double growth =
        graph::pair_momentum_growth(ranks, static_cast<double>(rate), static_cast<double>(momentum));
    if (growth >= 1)
      throw usage_error("among " + std::to_string(ranks) + " ranks in pairs an outer momentum of " +
                        std::to_string(momentum) + " at an outer rate of " + std::to_string(rate) +
                        " diverges: the ranks' differences grow by a factor of " + std::to_string(growth) +
                        " in each round. " + remedy());
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
  /// Returns the advice for the error message. Without momentum, differences shrink only at rates between 0 and 2.
  std::string remedy() const {
    if (rate <= 0) return "Raise the rate: at 0 no rank takes up anything of its partner's";
    if (rate >= 2) return "Lower the rate: from 2 on not even a momentum of 0 is small enough";
    return "Lower the momentum: at a rate of 0.7, 0.5 is fine among any number";
  }
};

/// NoLoCo: DiLoCo without a global mean. Every `period` steps of the inner recipe, which runs on each rank alone,
/// ranks meet in pairs. Each takes a separate outer step, see PairMomentum. All ranks draw the same pairs, from a
/// seed and the step. If the number of ranks is odd, one is its own partner.
///
///     NoLoCo<Adam<>>{.inner = {.learning_rate = 6e-4F}, .period = 50}
///
/// Ranks stay different; the model is their mean. State: the inner recipe's; anchor and velocity, n floats each,
/// different on each rank. Wire: every `period` steps all parameters in fp32, to one partner, for any number of
/// ranks. Passes in such a step, in addition to the inner recipe's: one to send, one to step.
///
/// Source: Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, "NoLoCo: no-all-reduce low communication training method for large
/// models", 2025 (arXiv 2506.10911).
template <class Inner>
using NoLoCo = recipes::LocalUpdatesOf<Inner, PairMomentum, Synchronous, Inside::alone, Dense,
                                       NoErrorFeedback, PairMomentum::Pairs>;

}  // namespace terse
