// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/mixing_rule.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Gradient tracking: mixes an estimate y of the mean gradient together with the model:
///
///     y_i = sum_j W_ij y_j + g_i - g_i'        x_i = sum_j W_ij (x_j - learning_rate y_j)
///
/// g_i' is the last step's gradient; at first y_i = g_i. The mean of the y_i is the mean of the g_i in every step. The state
/// is y without the next gradient, sum_j W_ij y_j - g_i.
struct GradientTracker {
  static constexpr MixingFacts facts{.vectors = 2, .sums_over_ranks = true, .second_by_difference = true};
  static constexpr std::array<const char*, 1> state{"tracker"};
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real outgoing(Vector<0>, const Element& e) const {
      return e.x() - e.rate() * (e[0] + e.g());
    }
    template <class Element>
    TERSE_HD Real outgoing(Vector<1>, const Element& e) const {
      return e[0] + e.g();
    }
    template <class Element>
    TERSE_HD Real update(Vector<0>, const Element&, Real own, Real difference) const {
      return own + difference;
    }
    template <class Element>
    TERSE_HD void update(Vector<1>, const Element& e, Real, Real difference) const {
      e[0] += difference;
    }
  };
};

/// Momentum without bias: c_i tracks the difference between this rank's momentum and the mean momentum,
///
///     u_i = beta u_i + g_i        x_i = sum_j W_ij x_j - learning_rate (u_i - c_i)
///     c_i = sum_j W_ij (c_j - u_j) + u_i
///
/// so that no bias remains for any beta. The mean of the c_i is 0 in every step. Here u and c start at 0, while
/// the authors' program starts from an exact mean of the first gradients.
struct MomentumTracker {
  static constexpr MixingFacts facts{.vectors = 2, .sums_over_ranks = true};
  static constexpr std::array<const char*, 2> state{"momentum", "correction"};
  float momentum = 0.9F;  ///< in [0, 1)

  constexpr std::array<HyperParameter, 1> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}}};
  }

  template <class Real>
  struct Rule {
    Real momentum;
    template <class Element>
    TERSE_HD Real velocity(const Element& e) const {
      return momentum * e[0] + e.g();
    }
    template <class Element>
    TERSE_HD Real outgoing(Vector<0>, const Element& e) const {
      return e.x();
    }
    template <class Element>
    TERSE_HD Real outgoing(Vector<1>, const Element& e) const {
      return e[1] - velocity(e);
    }
    template <class Element>
    TERSE_HD Real update(Vector<0>, const Element& e, Real own, Real difference) const {
      return (own + difference) - e.rate() * (velocity(e) - e[1]);
    }
    template <class Element>
    TERSE_HD void update(Vector<1>, const Element& e, Real own, Real difference) const {
      // u, from the sent value: x has changed since then, and with it a gradient that contains weight decay.
      e[0] = e[1] - own;
      e[1] += difference;
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
