// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"

// The orders in which a rank can adapt (take its own step) and combine (mix), with or without local momentum.

namespace terse {

TERSE_NUMERICS_BEGIN

/// Adapt, then combine: x_i = sum_j W_ij (x_j - learning_rate d_j), with d_j computed by Direction.
template <class Direction>
struct AdaptThenCombine {
  static_assert(check_local_direction<Direction>());
  static constexpr MixingFacts facts{.allows_push_sum = true};
  static constexpr auto state = Direction::state;
  Direction direction{};  ///< the local direction, from this rank's own gradient

  void check() const { detail::check_policy(direction); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(direction, visit);
  }

  template <class Real>
  struct Rule {
    typename Direction::template Rule<Real> step;
    auto at_step(std::uint64_t t) const requires requires { step.at_step(t); }
    { return step.at_step(t); }
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return e.x() - e.rate() * step.direction(e);
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real own, Real difference) const {
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
inline constexpr bool has_sound_parts<AdaptThenCombine<Direction>> = LocalDirection<Direction>;
}

/// Adapt with combine: x_i = sum_j W_ij x_j - learning_rate d_i. The message does not depend on the gradient.
template <class Direction>
struct AdaptWithCombine {
  static_assert(check_local_direction<Direction>());
  static constexpr MixingFacts facts{.before_gradient = true};
  static constexpr auto state = Direction::state;
  Direction direction{};  ///< the local direction, from this rank's own gradient

  void check() const { detail::check_policy(direction); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(direction, visit);
  }

  template <class Real>
  struct Rule {
    typename Direction::template Rule<Real> step;
    auto at_step(std::uint64_t t) const requires requires { step.at_step(t); }
    { return step.at_step(t); }
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return e.x();
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real own, Real difference) const {
      const Real x = (own + difference) - e.rate() * step.direction(e);
      step.keep(e);
      return x;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {rule_of<Real>(direction)};
  }
};

namespace detail {
template <class Direction>
inline constexpr bool has_sound_parts<AdaptWithCombine<Direction>> = LocalDirection<Direction>;
}

/// Combine, then adapt: y_i = sum_j W_ij x_j, x_i = y_i - learning_rate g_i(y_i).
struct CombineThenAdapt {
  static constexpr MixingFacts facts{.before_gradient = true, .combines_first = true};
  static constexpr std::array<const char*, 0> state{};

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return e.held();
    }
    template <class Element>
    TERSE_HD Real update(const Element&, Real own, Real difference) const {
      return own + difference;
    }
    template <class Element>
    TERSE_HD Real adapt(const Element& e) const {
      return e.x() - e.rate() * e.g();
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
