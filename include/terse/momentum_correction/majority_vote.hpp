// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Each rank's averaged gradient as its vote, and the sign of the votes' sum as direction; a tie counts as +:
///
///     m_i = momentum m_i + (1 - momentum) g_i        message m_i        direction sgn(sum_i sgn(m_i))
///
/// Segments that are averaged exactly move along the mean of m_i. Source: Bernstein, Zhao, Azizzadenesheli and
/// Anandkumar, "signSGD with majority vote is communication efficient and fault tolerant", ICLR 2019, algorithm 1.
struct MajorityVote {
  static constexpr CorrectionFacts facts{.needs_whole_messages = true};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float momentum = 0.9F;

  void check() const { check_beta("momentum", momentum); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("momentum", static_cast<double>(momentum));
  }

  template <class Real>
  struct Rule {
    Real momentum;
    template <class Element>
    TERSE_HD Real average(const Element& e, Real g) const {
      const Real m = momentum * e[0] + (1 - momentum) * g;
      e[0] = keep_if(is_finite(m), m, e[0]);
      return m;
    }
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      return average(e, e.g());
    }
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return mean < 0 ? -1 : 1;
    }
    template <class Element>
    TERSE_HD Real exact_direction(const Element& e, Real mean) const {
      return average(e, mean);
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {static_cast<Real>(momentum)};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
