// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"
#include "terse/momentum_correction/rate_ratio.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Momentum from the change of the model, including mixing. It follows the mean of all ranks. Let gamma be the learning
/// rate. z_i = x_i - gamma (beta m_i + g_i), or with Nesterov x_i - gamma (g_i + beta (beta m_i + g_i)), is sent, and
///
///     m_i = mu m_i + (1 - mu) (x_i - x_i') / gamma        x_i' = sum_j W_ij z_j
///
/// The state is u = gamma m. When gamma changes, it is multiplied by r = gamma / gamma', with gamma' the last step's rate. So no value
/// is divided by a rate, which may be 0. A step multiplies u by mu + (1 - mu) beta, with Nesterov by mu + (1 - mu) beta^2. If the rate
/// jumps up, r is at most the inverse of that factor; above it u would grow by itself.
struct QuasiGlobal {
  static constexpr MixingFacts facts{};
  static constexpr std::array<const char*, 1> state{"velocity"};
  float momentum = 0.9F;       ///< beta
  float decay = 0.9F;          ///< mu
  bool nesterov = false;       ///< true for Nesterov momentum
  bool follows_jumps = false;  ///< true removes the bound of r, as in the paper, for rates that jump

  constexpr std::array<HyperParameter, 4> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one},
             {"nesterov", nesterov},
             {"decay", decay, allowed::below_one},
             {"follows_jumps", follows_jumps}}};
  }
  float largest_ratio(std::uint64_t t) const {
    const float sent = momentum * (nesterov ? momentum : 1);
    return detail::largest_ratio(follows_jumps, decay + (1 - decay) * sent, t);
  }
  /// Returns the limit for eigenvalues of W. For an eigenvalue lambda, differences between ranks have the roots of
  /// z^2 - ((1 + k) lambda + mu) z + lambda (mu + k), k = (1 - mu) beta, or (1 - mu) beta^2 with Nesterov.
  double eigenvalues_above() const {
    const auto mu = static_cast<double>(decay), beta = static_cast<double>(momentum);
    const double k = (1 - mu) * beta * (nesterov ? beta : 1);
    return -(1 + mu) / (1 + mu + 2 * k);
  }

  template <class Real>
  struct Rule {
    Real momentum, decay;
    bool nesterov = false;
    /// Returns x - z.
    template <class Element>
    TERSE_HD Real step(const Element& e) const {
      const Real g = e.rate() * e.g();
      const Real v = momentum * e.ratio() * e[0] + g;
      return detail::ahead(nesterov, momentum, g, v);
    }
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return e.x() - step(e);
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real own, Real difference) const {
      e[0] = decay * e.ratio() * e[0] + (1 - decay) * (step(e) - difference);
      return own + difference;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {static_cast<Real>(momentum), static_cast<Real>(decay), nesterov};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
