// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/majority_vote.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// The majority outcome of the votes, as in Distributed Lion's "MaVo".
template <Tie T = Tie::zero>
struct Counted {
  static constexpr bool exact = false;
  static constexpr bool zero = T == Tie::zero;
  template <class Real>
  TERSE_HD static Real of(Real mean) {
    return detail::outcome<T>(mean);
  }
};
/// The mean of the votes, as in Distributed Lion's "Avg".
struct Averaged {
  static constexpr bool exact = true;
  static constexpr bool zero = true;
  template <class Real>
  TERSE_HD static Real of(Real mean) {
    return mean;
  }
};

/// Lion's two averages of each rank's own gradient, which votes by a compressor of signs (UnitTernary):
///
///     message beta1 m_i + (1 - beta1) g_i        m_i = beta2 m_i + (1 - beta2) g_i        direction: Outcome of the mean of signs
///
/// Segments that are averaged exactly step by the sign of the message that the mean gradient would give, which is Lion's
/// step. Source: Liu et al., "Communication efficient distributed training with distributed Lion", NeurIPS 2024 (arXiv
/// 2404.00438), algorithm 1.
template <class Outcome = Counted<>>
struct LocalLion {
  static constexpr CorrectionFacts facts{.needs_whole_messages = !Outcome::exact,
                                         .needs_zero = Outcome::zero,
                                         .needs_exact_mean = Outcome::exact};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float beta1 = 0.9F;   ///< decay rate in the message; in [0, 1)
  float beta2 = 0.99F;  ///< decay rate of the stored momentum; in [0, 1)

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"beta1", beta1, allowed::below_one}, {"beta2", beta2, allowed::below_one}}};
  }

  template <class Real>
  struct Rule {
    Real beta1, beta2;
    template <class Element>
    TERSE_HD Real interpolate(const Element& e, Real g) const {
      const Real m = e[0], message = beta1 * m + (1 - beta1) * g, next = beta2 * m + (1 - beta2) * g;
      e[0] = keep_if(is_finite(message) && is_finite(next), next, m);
      return message;
    }
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      return interpolate(e, e.g());
    }
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return Outcome::of(mean);
    }
    template <class Element>
    TERSE_HD Real exact_direction(const Element& e, Real mean) const {
      return detail::outcome<Tie::zero>(interpolate(e, mean));
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
