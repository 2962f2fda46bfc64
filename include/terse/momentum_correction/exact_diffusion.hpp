// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Mixing that corrects the effect of mixing on the last step, so that differences between the ranks' data leave no bias.
/// Let gamma be the learning rate, and d_i the direction by Direction:
///
///     psi_i = x_i - gamma d_i        phi_i = psi_i + r_i        x_i = sum_j W_ij phi_j        r_i = x_i - psi_i
///
/// r is x - psi of the last step and starts at 0, so that the first step is a plain step. Learning rates may change: each
/// gradient keeps the learning rate of its step. For an eigenvalue lambda of W, differences between ranks have the roots of
/// z^2 - 2 lambda z + lambda. They are inside the unit circle for real lambda in (-1/3, 1), but not for complex ones near 1.
template <class Direction>
struct ExactDiffusion {
  static_assert(check_local_direction<Direction>());
  static constexpr MixingFacts facts{
      .needs_fixed_symmetric = true, .needs_spectrum = true, .sums_over_ranks = true};
  static constexpr auto state = detail::with_name(Direction::state, "correction");
  static double eigenvalues_above() { return -1.0 / 3; }
  Direction direction{};  ///< the local direction, from this rank's own gradient

  void check() const { detail::check_policy(direction); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(direction, visit);
  }

  template <class Real>
  struct Rule {
    static constexpr int correction = static_cast<int>(Direction::state.size());
    typename Direction::template Rule<Real> step;
    auto at_step(std::uint64_t t) const requires requires { step.at_step(t); }
    { return step.at_step(t); }
    template <class Element>
    TERSE_HD Real adapted(const Element& e) const {
      return e.x() - e.rate() * step.direction(e);
    }
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return adapted(e) + e[correction];
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real own, Real difference) const {
      // x - psi, without subtracting two large numbers. Otherwise rounding errors of r would accumulate over the
      // steps, as momentum does. They would keep the ranks up to a thousand units in the last place away from the
      // optimum.
      e[correction] += difference;
      step.keep(e);
      return own + difference;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {rule_of<Real>(direction)};
  }
};

namespace detail {
template <class Direction>
inline constexpr bool has_sound_parts<ExactDiffusion<Direction>> = LocalDirection<Direction>;
}

TERSE_NUMERICS_END

}  // namespace terse
