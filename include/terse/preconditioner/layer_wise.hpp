// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/check.hpp"
#include "terse/core/policy.hpp"
#include "terse/executor/statistic.hpp"
#include "terse/preconditioner/concept.hpp"

// Preconditioners that scale the step of a whole layer.

namespace terse {

TERSE_NUMERICS_BEGIN

/// LAMB's layer-wise rates over the steps u of another preconditioner. For each segment
///
///     c = clamp(||x|| / ||u + weight_decay x||, min_coefficient, max_coefficient)       1 if a norm is 0
///     x = x - learning_rate c (u + weight_decay x)
///
/// State: the state of P, and n floats for u between the sweeps. Passes in addition to the first sweep: two read-only ones for the
/// norms, and the second sweep. Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes",
/// ICLR 2020, algorithm 2.
template <Preconditioner P>
struct LayerWise {
  static_assert(!P::facts.layer_wise, "terse: LayerWise goes around a preconditioner that is not layer-wise");
  static constexpr PreconditionerFacts facts{.layer_wise = true,
                                             .continues_first_stage = P::facts.continues_first_stage};
  static constexpr auto state = P::state;

  P inner{};                      ///< the preconditioner whose steps it scales
  float min_coefficient = 0.01F;  ///< the minimum coefficient of a layer, > 0
  float max_coefficient = 10;     ///< the maximum coefficient of a layer

  void check() const {
    detail::check_policy(inner);
    require(min_coefficient > 0 && min_coefficient <= max_coefficient,
            "min_coefficient must be positive and at most max_coefficient",
            static_cast<double>(min_coefficient));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(inner, visit);
    visit("min_coefficient", static_cast<double>(min_coefficient));
    visit("max_coefficient", static_cast<double>(max_coefficient));
  }

  template <class Real>
  struct Rule : P::template Rule<Real> {
    using measures = Statistics<EuclideanNorm, EuclideanNorm>;
    Real least, most;
    template <class Element>
    TERSE_HD Real measured(int k, const Element& e, Real u) const {
      return k == 0 ? e.x() : u + e.decay() * e.x();
    }
    template <class Layer>
    TERSE_HD Real factor(const Layer& layer) const {
      const Real x = layer.measured(0), step = layer.measured(1);
      if (!(x > 0 && step > 0)) return 1;
      const Real c = x / step;
      return c < least ? least : c > most ? most : c;
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {rule_of<Real>(inner), static_cast<Real>(min_coefficient), static_cast<Real>(max_coefficient)};
  }
};

/// LARS: layer-wise rates on the direction g, and momentum on the scaled direction. For each segment of at least two
/// dimensions
///
///     r = trust ||x|| / (||g|| + weight_decay ||x|| + epsilon)        1 if a norm is 0, and for one dimension
///     v = momentum v + learning_rate r (g + weight_decay x)
///     x = x - v, or with Nesterov x - (momentum v + learning_rate r (g + weight_decay x))
///
/// Biases and the parameters of normalizations have no layer-wise rates. State: velocity, and n floats for g between
/// the sweeps. Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017, algorithm 1.
struct LarsRates {
  static constexpr PreconditionerFacts facts{.layer_wise = true, .least_dimensions = 2};
  static constexpr std::array<const char*, 1> state{"velocity"};

  float momentum = 0.9F;  ///< in [0, 1)
  bool nesterov = false;  ///< true for Nesterov momentum
  float trust = 1e-3F;    ///< the paper's eta
  float epsilon = 0;      ///< added to the denominator of a layer's rate; the paper has none

  constexpr std::array<HyperParameter, 4> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one},
             {"nesterov", nesterov},
             {"trust", trust, allowed::not_negative},
             {"epsilon", epsilon, allowed::not_negative}}};
  }

  template <class Real>
  struct Rule {
    using measures = Statistics<EuclideanNorm, EuclideanNorm>;
    Real momentum;
    bool nesterov;
    Real trust, epsilon;
    template <class Element>
    TERSE_HD Real step(const Element&, Real, Real direction) const {
      return direction;
    }
    template <class Element>
    TERSE_HD Real measured(int k, const Element& e, Real u) const {
      return k == 0 ? e.x() : u;
    }
    template <class Layer>
    TERSE_HD Real factor(const Layer& layer) const {
      const Real x = layer.measured(0), g = layer.measured(1);
      if (!(x > 0 && g > 0)) return 1;
      return trust * x / (g + layer.decay() * x + epsilon);
    }
    template <class Element>
    TERSE_HD Real move(const Element& e, Real u, Real rate) const {
      const Real step = rate * (u + e.decay() * e.x());
      const Real v = momentum * e[0] + step;
      e[0] = v;
      return nesterov ? momentum * v + step : v;
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
