// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/executor/statistic.hpp"
#include "terse/preconditioner/frozen_variance.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// Layer-wise rates over a frozen variance, those of 1-bit LAMB: LAMB's coefficients c are frozen with the variance, and then
/// slowly follow a fresh variance. In a Staged whose first stage is layer-wise (LayerWise<AdamVariance>),
///
///     in each step of the first stage, for each layer, if c != 1,
///       frozen = coefficient_beta frozen + (1 - coefficient_beta) c
///     when it ends:            v~ = v
///     in the second stage, u0 the step of P, d the factor of P, g~ the gradient estimated from the mean:
///       v~ = beta2 v~ + (1 - beta2) g~^2                 unchanged if that overflows
///       f = max over the layer of 1 / (d (sqrt(v~) + epsilon))
///       f = f q + 1 - q,  q = min(1, ||u0|| / ||u0 + weight_decay x||)
///       f = clamp(f, min_factor, max_factor), and within factor_threshold of the last f
///       x = x - learning_rate frozen f (u0 + weight_decay x)
///
/// A layer whose c was 1 in all steps has frozen = 1; the first f stays within factor_threshold of 1. P is
/// FrozenVariance, or a preconditioner that continues a first stage and whose rule has `reciprocal(e)`, d.
///
/// State: the state of P, v~, n floats for u0 between the sweeps, and frozen and f for each layer. Passes in addition to the first
/// sweep: three read-only ones, and the second sweep. Source: Li et al., "1-bit LAMB", HiPC 2022 (arXiv 2104.06069), algorithm 1.
template <Preconditioner P = FrozenVariance>
struct FrozenLayerRates {
  static_assert(P::facts.continues_first_stage && !P::facts.layer_wise,
                "terse: FrozenLayerRates wraps FrozenVariance, or another preconditioner that continues from "
                "a first stage");
  static constexpr PreconditionerFacts facts{.layer_wise = true, .continues_first_stage = true};
  static constexpr auto state = detail::with_name(P::state, "fresh_variance");
  static constexpr std::array<const char*, 2> layer_state{"frozen_coefficients", "factors"};

  P inner{};             ///< the preconditioner whose steps it scales
  float beta2 = 0.999F;  ///< decay rate of the fresh variance; in [0, 1)
  float epsilon =
      1e-8F;  ///< added to the denominator, outside the root; equal to the epsilon of the first stage's preconditioner
  float coefficient_beta = 0.9F;  ///< decay rate of the coefficients' average over the first stage; in [0, 1)
  float min_factor = 0.5F;        ///< the minimum factor on a frozen coefficient, in (0, 1]
  float max_factor = 4;           ///< the maximum factor, at least 1
  /// The largest relative change of the factor in a step; in [0, 1).
  float factor_threshold = 0.1F;

  void check() const {
    detail::check_policy(inner);
    detail::check_beta("beta2", beta2);
    detail::check_epsilon(epsilon);
    detail::check_beta("coefficient_beta", coefficient_beta);
    detail::check_beta("factor_threshold", factor_threshold);
    require(min_factor > 0 && min_factor <= 1 && max_factor >= 1,
            "min_factor must be in (0, 1] and max_factor at least 1", static_cast<double>(min_factor));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::policy_settings(inner, visit);
    visit("beta2", static_cast<double>(beta2));
    visit("epsilon", static_cast<double>(epsilon));
    visit("coefficient_beta", static_cast<double>(coefficient_beta));
    visit("min_factor", static_cast<double>(min_factor));
    visit("max_factor", static_cast<double>(max_factor));
    visit("factor_threshold", static_cast<double>(factor_threshold));
  }

  template <class Real>
  struct Rule : P::template Rule<Real> {
    using Inner = typename P::template Rule<Real>;
    using measures = Statistics<EuclideanNorm, EuclideanNorm, MaxAbs>;
    static constexpr int fresh = static_cast<int>(P::state.size());

    Real beta, epsilon, coefficient_beta, least, most, threshold;

    template <class Element>
    TERSE_HD Real step(const Element& e, Real gradient, Real direction) const {
      const Real v = beta * e[fresh] + (1 - beta) * (gradient * gradient);
      e[fresh] = keep_if(is_finite(v), v, e[fresh]);
      return Inner::step(e, gradient, direction);
    }
    template <class Element>
    TERSE_HD void carry(const Element& e, Real denominator) const {
      Inner::carry(e, denominator);
      // Computed from d, the value that is stored.
      const Real d = Inner::reciprocal(e), root = 1 / d - epsilon;
      e[fresh] = keep_if(d > 0, root * root);
    }
    template <class Element>
    TERSE_HD Real measured(int k, const Element& e, Real u) const {
      if (k == 0) return u + e.decay() * e.x();
      if (k == 1) return u;
      const Real d = Inner::reciprocal(e);
      return keep_if(d > 0, 1 / (d * (std::sqrt(e[fresh]) + epsilon)));
    }
    template <class Layer>
    TERSE_HD void observe(const Layer& layer, Real coefficient) const {
      if (coefficient != 1) layer[0] = coefficient_beta * layer[0] + (1 - coefficient_beta) * coefficient;
    }
    template <class Layer>
    TERSE_HD Real factor(const Layer& layer) const {
      const Real frozen = layer[0] > 0 ? layer[0] : Real{1}, last = layer[1] > 0 ? layer[1] : Real{1};
      Real f = layer.measured(2);
      if (layer.measured(0) > 0) {
        const Real q = clamp(layer.measured(1) / layer.measured(0), 0, 1);
        f = f * q + (1 - q);
      }
      f = clamp(clamp(f, least, most), last * (1 - threshold), last * (1 + threshold));
      layer[1] = f;
      return frozen * f;
    }

   private:
    TERSE_HD static Real clamp(Real x, Real low, Real high) { return x < low ? low : x > high ? high : x; }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {rule_of<Real>(inner),
            static_cast<Real>(beta2),
            static_cast<Real>(epsilon),
            static_cast<Real>(coefficient_beta),
            static_cast<Real>(min_factor),
            static_cast<Real>(max_factor),
            static_cast<Real>(factor_threshold)};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
