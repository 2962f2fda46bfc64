// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/check.hpp"
#include "terse/momentum_correction/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// An average of each rank's own gradients before compression, which starts at the first gradient: v_i = (1 - eta) v_i + eta g_i.
/// The message is v_i, and the direction is the mean. In exact steps g_i is the mean, so all v_i become equal. Source:
/// Fatkhullin, Tyurin and Richtarik, "Momentum provably improves error feedback!", NeurIPS 2023, algorithm 1.
struct SmoothedGradient {
  static constexpr CorrectionFacts facts{.rests_at_zero = true};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float eta = 0.1F;  ///< weight of the new gradient, in (0, 1]; with 1 there is no memory

  constexpr std::array<HyperParameter, 1> hyper_parameters() const {
    return {{{"eta", eta, allowed::share}}};
  }

  template <class Real>
  struct Rule {
    Real eta;
    std::array<Real, 1> at_step(std::uint64_t t) const { return {t == 1 ? Real{1} : eta}; }
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      const Real share = e.scalar(0), v = (1 - share) * e[0] + share * e.g();
      e[0] = keep_if(is_finite(v), v, e[0]);
      return v;
    }
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return mean;
    }
    template <class Element>
    TERSE_HD Real exact_direction(const Element& e, Real mean) const {
      const Real share = e.scalar(0), v = (1 - share) * e[0] + share * mean;
      e[0] = v;
      return v;
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
