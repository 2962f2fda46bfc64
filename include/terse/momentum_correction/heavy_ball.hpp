// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/check.hpp"
#include "terse/momentum_correction/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// The momentum correction without momentum and without state.
struct NoMomentum {
  static constexpr CorrectionFacts facts{.rests_at_zero = true};
  static constexpr std::array<const char*, 0> state{};

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return mean;
    }
  };
};

/// Momentum on the mean, equal on all ranks: v = momentum v + mean; the direction is v, or mean + momentum v for
/// Nesterov. Source: Polyak 1964; Sutskever et al., ICML 2013, in the form without dampening.
struct HeavyBall {
  static constexpr CorrectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float momentum = 0.9F;  ///< in [0, 1)
  bool nesterov = false;  ///< true for Nesterov momentum

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}, {"nesterov", nesterov}}};
  }

  template <class Real>
  struct Rule {
    Real momentum;
    bool nesterov;
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      return detail::accelerate(e[0], momentum, nesterov, mean);
    }
  };
};

/// Momentum before compression, of each rank's own gradient: v_i = momentum v_i + g_i; the message is g_i + momentum
/// v_i (Nesterov) or v_i. Source: Zheng, Huang and Kwok, "Communication-efficient distributed blockwise momentum SGD
/// with error-feedback", NeurIPS 2019, algorithm 2.
struct LocalMomentumBefore {
  static constexpr CorrectionFacts facts{.rests_at_zero = true};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float momentum = 0.9F;  ///< in [0, 1)
  bool nesterov = true;   ///< true for Nesterov momentum

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}, {"nesterov", nesterov}}};
  }

  template <class Real>
  struct Rule {
    Real momentum;
    bool nesterov;
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      return detail::accelerate(e[0], momentum, nesterov, e.g());
    }
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return mean;
    }
    template <class Element>
    TERSE_HD Real exact_direction(const Element& e, Real mean) const {
      return detail::accelerate(e[0], momentum, nesterov, mean);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
