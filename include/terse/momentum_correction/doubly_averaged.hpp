// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Mixing of parameters and momentum: m_i = beta m_i + g_i, x_i = sum_j W_ij (x_j - learning_rate m_j), m_i = sum_j W_ij m_j.
struct DoublyAveraged {
  static constexpr MixingFacts facts{.vectors = 2};
  static constexpr std::array<const char*, 1> state{"momentum"};
  MomentumDirection direction{};  ///< the local direction, with its momentum

  void check() const { detail::check_policy(direction); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(direction, visit);
  }

  template <class Real>
  struct Rule {
    MomentumDirection::Rule<Real> step;
    template <class Element>
    TERSE_HD Real outgoing(Vector<0>, const Element& e) const {
      return e.x() - e.rate() * step.direction(e);
    }
    template <class Element>
    TERSE_HD Real outgoing(Vector<1>, const Element& e) const {
      return step.velocity(e);
    }
    template <class Element>
    TERSE_HD Real update(Vector<0>, const Element&, Real own, Real difference) const {
      return own + difference;
    }
    template <class Element>
    TERSE_HD void update(Vector<1>, const Element& e, Real own, Real difference) const {
      e[0] = own + difference;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {rule_of<Real>(direction)};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
