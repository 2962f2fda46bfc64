// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/core/bias_correction.hpp"
#include "terse/core/check.hpp"
#include "terse/preconditioner/concept.hpp"

// Preconditioners that read one element at a time.

namespace terse {

TERSE_NUMERICS_BEGIN

/// The direction is the step: SGD.
struct NoPreconditioner {
  static constexpr PreconditionerFacts facts{.rests_at_zero = true};
  static constexpr std::array<const char*, 0> state{};

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real step(const Element&, Real, Real direction) const {
      return direction;
    }
  };
};

/// The direction's sign, 0 for 0: the step of Lion and signSGD, whose elements have equal magnitudes.
struct SignStep {
  static constexpr PreconditionerFacts facts{.rests_at_zero = true};
  static constexpr std::array<const char*, 0> state{};

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real step(const Element&, Real, Real direction) const {
      return keep_if(direction > 0, Real{1}) - keep_if(direction < 0, Real{1});
    }
  };
};

/// v = beta2 v + (1 - beta2) mean^2; u = direction / (sqrt(v / (1 - beta2^t)) + epsilon). Without bias correction it is
/// RMSProp's rule. Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1; Tieleman and Hinton, lecture 6.5, 2012.
struct AdamVariance {
  static constexpr PreconditionerFacts facts{};
  static constexpr std::array<const char*, 1> state{"variance"};

  float beta2 = 0.999F;         ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;        ///< added to the denominator, outside the root
  bool bias_correction = true;  ///< true for Adam's bias correction

  constexpr std::array<HyperParameter, 3> hyper_parameters() const {
    return {{{"beta2", beta2, allowed::below_one},
             {"epsilon", epsilon, allowed::above_zero},
             {"bias_correction", bias_correction}}};
  }

  template <class Real>
  struct Rule {
    Real beta, epsilon;
    bool corrects;
    std::array<Real, 1> at_step(std::uint64_t t) const {
      return {corrects ? terse::bias_correction(beta, t) : Real{1}};
    }
    template <class Element>
    TERSE_HD Real step(const Element& e, Real mean, Real direction) const {
      const Real v = beta * e[0] + (1 - beta) * (mean * mean);
      e[0] = v;
      return direction / (std::sqrt(e.scalar(0) * v) + epsilon);
    }
    template <class Element>
    TERSE_HD Real denominator(const Element& e) const {
      return keep_if(e[0] > 0, std::sqrt(e.scalar(0) * e[0]) + epsilon);
    }
  };
};

/// The running maximum of the variance: v = beta2 v + (1 - beta2) mean^2, w = max(w, v);
/// u = direction / (sqrt(w / (1 - beta2^t)) + epsilon). Without bias correction w is not divided. Source: Reddi, Kale and
/// Kumar, "On the convergence of Adam and beyond", ICLR 2018, algorithm 2, without bias correction; PyTorch applies it.
struct AmsgradVariance {
  static constexpr PreconditionerFacts facts{};
  static constexpr std::array<const char*, 2> state{"variance", "largest_variance"};

  float beta2 = 0.999F;         ///< decay rate of the variance; in [0, 1)
  float epsilon = 1e-8F;        ///< added to the denominator, outside the root
  bool bias_correction = true;  ///< true for Adam's bias correction

  constexpr std::array<HyperParameter, 3> hyper_parameters() const {
    return {{{"beta2", beta2, allowed::below_one},
             {"epsilon", epsilon, allowed::above_zero},
             {"bias_correction", bias_correction}}};
  }

  template <class Real>
  struct Rule {
    Real beta, epsilon;
    bool corrects;
    std::array<Real, 1> at_step(std::uint64_t t) const {
      return {corrects ? terse::bias_correction(beta, t) : Real{1}};
    }
    template <class Element>
    TERSE_HD Real step(const Element& e, Real mean, Real direction) const {
      const Real v = beta * e[0] + (1 - beta) * (mean * mean);
      const Real largest = keep_if(v > e[1], v, e[1]);
      e[0] = v;
      e[1] = largest;
      return direction / (std::sqrt(e.scalar(0) * largest) + epsilon);
    }
    template <class Element>
    TERSE_HD Real denominator(const Element& e) const {
      return keep_if(e[1] > 0, std::sqrt(e.scalar(0) * e[1]) + epsilon);
    }
  };
};

/// s = s + mean^2; u = direction / (sqrt(s) + epsilon). Source: Duchi, Hazan and Singer, "Adaptive subgradient methods",
/// JMLR 2011, with a diagonal matrix.
struct AdagradSum {
  static constexpr PreconditionerFacts facts{};
  static constexpr std::array<const char*, 1> state{"squared_gradients"};

  float epsilon = 1e-10F;  ///< added to the denominator, outside the root

  constexpr std::array<HyperParameter, 1> hyper_parameters() const {
    return {{{"epsilon", epsilon, allowed::above_zero}}};
  }

  template <class Real>
  struct Rule {
    Real epsilon;
    template <class Element>
    TERSE_HD Real step(const Element& e, Real mean, Real direction) const {
      const Real s = e[0] + mean * mean;
      e[0] = keep_if(is_finite(s), s, e[0]);
      return direction / (std::sqrt(s) + epsilon);
    }
    template <class Element>
    TERSE_HD Real denominator(const Element& e) const {
      return keep_if(e[0] > 0, std::sqrt(e[0]) + epsilon);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
