// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Deep gradient compression's momentum correction with factor masking. The error feedback accumulates the momentum,
/// not the gradient, and the momentum of an element is reset once it has been sent:
///
///     u_i = momentum u_i + g_i        message u_i        u_i = 0 where sent
///
/// or with Nesterov u_i = momentum (u_i + g_i) and message u_i + g_i. Segments that are averaged exactly apply ordinary
/// momentum to the mean. Source: Lin, Han, Mao, Wang and Dally, "Deep gradient compression", ICLR 2018, sections 3.1 and
/// 3.2.
struct FactorMasking {
  static constexpr CorrectionFacts facts{.rests_at_zero = true};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float momentum = 0.9F;  ///< in [0, 1)
  bool nesterov = false;  ///< true for Nesterov momentum

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}, {"nesterov", nesterov}}};
  }

  template <class Real>
  struct Rule {
    Real momentum;
    bool nesterov;
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      const Real g = e.g();
      const Real u = keep_if(nesterov, momentum * (e[0] + g), momentum * e[0] + g);
      e[0] = keep_if(is_finite(u), u, e[0]);
      return u + keep_if(nesterov, g);
    }
    template <class Element>
    TERSE_HD void sent(const Element& e, bool keep, Real decoded) const {
      e[0] = keep_if(keep && decoded == 0, e[0]);
    }
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return mean;
    }
    template <class Element>
    TERSE_HD Real exact_direction(const Element& e, Real mean) const {
      return detail::accelerate(e[0], momentum, nesterov, mean);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
