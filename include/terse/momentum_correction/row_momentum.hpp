// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/check.hpp"
#include "terse/momentum_correction/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// A sum of means, equal on all ranks, that decays when a step is taken along it:
///
///     m = m + mean, the direction        m = momentum m, of elements that the preconditioner has not left out
///
/// So elements that are not chosen accumulate, as in an error feedback. If all are chosen, the direction is HeavyBall's. For
/// preconditioners that orthogonalize: OrthogonalRows. Source: Ahn, Amsel and Langford, "Dion2", 2025 (arXiv 2512.16928).
struct RowMomentum {
  static constexpr CorrectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float momentum = 0.95F;  ///< factor on the sum after a step along it; in [0, 1)

  constexpr std::array<HyperParameter, 1> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}}};
  }

  template <class Real>
  struct Rule {
    Real momentum;
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      const Real m = e[0] + mean;
      e[0] = keep_if(is_finite(m), m, e[0]);
      return e[0];
    }
    template <class Element>
    TERSE_HD void stepped(const Element& e, bool taken) const {
      e[0] = keep_if(taken, momentum * e[0], e[0]);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
