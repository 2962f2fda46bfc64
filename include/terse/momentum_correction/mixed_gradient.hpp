// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"
#include "terse/momentum_correction/rate_ratio.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// DecentLaM's momentum, on the whole step (gradient and mixing) instead of the gradient. Let gamma be the learning
/// rate. z_i = x_i - gamma g_i is sent, and
///
///     u_i = beta r u_i + (x_i - sum_j W_ij z_j)        x_i = x_i - u_i
///
/// u is gamma m, with m the paper's momentum, and r = gamma / gamma', with gamma' the last step's rate. So no value is divided by a rate,
/// which may be 0. If the rate jumps up, r is at most 1 / beta, or the ratio of a linear warm-up. Above that the recursion is unstable on
/// every graph. With Nesterov momentum all eigenvalues of W must be above -1 / (1 + 2 beta).
struct MixedGradient {
  static constexpr MixingFacts facts{.needs_fixed_symmetric = true};
  static constexpr std::array<const char*, 1> state{"velocity"};
  float momentum = 0.9F;       ///< beta; in [0, 1)
  bool nesterov = false;       ///< true for Nesterov momentum
  bool follows_jumps = false;  ///< true removes the bound of r, as in the paper, for rates that jump

  constexpr std::array<HyperParameter, 3> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one},
             {"nesterov", nesterov},
             {"follows_jumps", follows_jumps}}};
  }
  float largest_ratio(std::uint64_t t) const { return detail::largest_ratio(follows_jumps, momentum, t); }

  /// Returns the limit for eigenvalues of W: the look-ahead counts the differences between ranks twice.
  double eigenvalues_above() const { return nesterov ? -1 / (1 + 2 * static_cast<double>(momentum)) : -1; }

  template <class Real>
  struct Rule {
    Real momentum;
    bool nesterov = false;
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return e.x() - e.rate() * e.g();
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real, Real difference) const {
      // x - mixture, without subtracting two large numbers.
      const Real moved = e.rate() * e.g() - difference;
      const Real u = momentum * e.ratio() * e[0] + moved;
      // At a rate of 0 the step only mixes, without look-ahead, with which 1 - (1 + beta) (1 - lambda) may be below
      // -1.
      const Real x = e.x() - detail::ahead(nesterov && e.rate() > 0, momentum, moved, u);
      e[0] = u;
      return x;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {static_cast<Real>(momentum), nesterov};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
