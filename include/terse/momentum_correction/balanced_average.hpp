// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/momentum_correction/averaged.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// LocalAverage, scaled so that the momenta of all layers have the same size in the messages, as in 1-bit LAMB. When
/// the second stage of a Staged begins, let r = ||m|| / sqrt(n) of each compressed layer:
///
///     s = mean over layers of r / r                  1 if r is 0, and at most 2^24
///     message (beta1 m + (1 - beta1) g_i) s          m is the mean of the messages, / s
///
/// so that one scale can serve all layers. The gradient estimated from a mean is (m' - beta1 m) / (1 - beta1), m' the new
/// momentum. State: momentum, and s for each layer. Source: Li et al., "1-bit LAMB", HiPC 2022, algorithm 1.
struct BalancedAverage {
  static constexpr CorrectionFacts facts{.common = true};
  static constexpr std::array<const char*, 1> state{"momentum"};
  static constexpr std::array<const char*, 1> layer_state{"scales"};

  float beta1 = 0.9F;  ///< decay rate of the momentum; in [0, 1)

  constexpr std::array<HyperParameter, 1> hyper_parameters() const {
    return {{{"beta1", beta1, allowed::below_one}}};
  }

  template <class Real>
  struct Rule : LocalAverage::Rule<Real> {
    using Local = LocalAverage::Rule<Real>;

    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      return Local::message(e) * scale(e);
    }
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      return Local::direction(e, mean / scale(e));
    }
    template <class Element>
    TERSE_HD Real mean_gradient(const Element& e, Real mean) const {
      return (mean / scale(e) - this->beta * e[0]) / (1 - this->beta);
    }
    template <class Layers>
    TERSE_HD void balance(const Layers& layers) const {
      Real sum = 0, count = 0;
      for (index_t s = 0; s < layers.count(); ++s) {
        const Real r = size_of(layers, s);
        sum += r;
        count += r > 0 ? Real{1} : Real{0};
      }
      // Bounds the scale of momentum that has decayed because gradients were 0. Without a bound, later gradients would
      // overflow.
      constexpr Real most = static_cast<Real>(0x1p24);
      for (index_t s = 0; s < layers.count(); ++s) {
        const Real r = size_of(layers, s);
        const Real wanted = r > 0 ? sum / count / r : Real{1};
        layers(s, 0) = wanted < most ? wanted : most;
      }
    }

   private:
    /// Returns the layer's scale, or 1 before it has one.
    template <class Element>
    TERSE_HD static Real scale(const Element& e) {
      const Real s = e.layer(0);
      return s > 0 ? s : Real{1};
    }
    template <class Layers>
    TERSE_HD static Real size_of(const Layers& layers, index_t s) {
      const Real norm = layers.norm(s);
      return norm > 0 ? norm / static_cast<Real>(std::sqrt(static_cast<double>(layers.elements(s))))
                      : Real{0};
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {{static_cast<Real>(beta1)}};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
