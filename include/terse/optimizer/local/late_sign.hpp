// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/local/outer_step.hpp"

namespace terse {

/// DisTrO's merge of a late mean, by the mean's sign, while each rank looks ahead along its unsent part. The inner
/// recipe steps on a separate buffer u_i, so that -u_i is its result. Let r be the learning rate of the step in
/// which the mean was sent, and s_i the sent part of -u_i. When ranks send:
///
///     anchor = anchor - r (sign(mean_i s_i) + weight_decay anchor)        the last mean
///     x_i = anchor - rate (sign(-u_i) + weight_decay anchor)              where gradients are computed next
///     u_i = decay (u_i + s_i)                                             s_i is sent
///
/// A single rank that sends its whole step looks ahead to exactly the point to which the mean will move it. The
/// anchor is equal on all ranks, see ReadOut; x_i is not. If the mean is lost with a rank, s_i is lost, too. Segments have separate rates and decay, but there are no
/// groups. The inner recipe's weight decay would apply to u_i. Source: Nous Research, DisTrO in the code of Psyche
/// (PsycheFoundation/psyche, shared/modeling/src/distro.rs), 2025.
struct LateSign {
  static constexpr std::array<const char*, 2> state{"anchor", "unsent"};
  static constexpr int from_start = 1, shared = 1;
  static constexpr bool follows_rate = false;
  static constexpr bool merges_as_it_sends = true;
  static constexpr bool keeps_errors = true;
  static constexpr bool steps_apart = true;

  float decay = 0.995F;    ///< factor of the unsent part; in (0, 1]
  float weight_decay = 0;  ///< decoupled decay of the anchor

  void check() const {
    require(decay > 0 && decay <= 1, "decay must be in (0, 1]", static_cast<double>(decay));
    detail::check_rate("weight_decay", weight_decay);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("decay", static_cast<double>(decay));
    visit("outer_weight_decay", static_cast<double>(weight_decay));
  }
  template <Number P>
  detail::Unsent message(ParameterRef<P>, OuterBuffers own) const {
    return {own.second, decay};
  }
  template <Number P>
  static detail::UnsentWhole whole_message(ParameterRef<P>, OuterBuffers own) {
    return {own.second};
  }
  static detail::SignAnchor land(OuterBuffers own, const StepScalars*, int) { return {own.first, own.rates}; }
  template <Number P>
  static detail::LookAhead<P> merge(ParameterRef<P> x, OuterBuffers own, const StepScalars*, int) {
    return {x, own.first, own.second, own.rates};
  }
  static float ahead(ReadOut) { return 0; }
};

}  // namespace terse
