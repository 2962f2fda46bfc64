// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Momentum-accelerated consensus: momentum is the last change of the model, v_i = x_i - x_i', and is mixed like the model.
///
///     x_i = sum_j W_ij x_j + beta (omega sum_j W_ij v_j + (1 - omega) v_i) - learning_rate g_i
///
/// omega = 0 keeps momentum local (CDMSGD), omega = 1 mixes all of it. Parameters and momentum are mixed by the same
/// weights, so neighbours need only their sum x_j + beta omega v_j, at half the bytes of both. The sum does not
/// depend on the gradient. Momentum vanishes at the fixed point, so the bias is that of plain mixing at the same
/// learning rate. All eigenvalues of W must exceed -(1 + 2 beta (1 - omega)) / (1 + 2 beta omega), which is a
/// restriction for omega > 1/2.
struct Displacement {
  static constexpr MixingFacts facts{.before_gradient = true, .needs_fixed_symmetric = true};
  static constexpr std::array<const char*, 1> state{"displacement"};
  float momentum = 0.9F;  ///< beta; in [0, 1)
  float omega = 0.5F;     ///< the share of the momentum that is mixed; in [0, 1]

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}, {"omega", omega, allowed::up_to_one}}};
  }

  /// Returns the eigenvalue of W at which a root of the recursion leaves the unit circle, at -1.
  double eigenvalues_above() const {
    const double beta = static_cast<double>(momentum), mixed = static_cast<double>(omega);
    return -(1 + 2 * beta * (1 - mixed)) / (1 + 2 * beta * mixed);
  }

  template <class Real>
  struct Rule {
    Real momentum, omega;
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return e.x() + momentum * omega * e[0];
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real own, Real difference) const {
      const Real v = e[0];
      const Real x = (own + difference) + (momentum * (1 - omega) * v - e.rate() * e.g());
      e[0] = x - e.x();
      return x;
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
