// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "terse/core/bias_correction.hpp"
#include "terse/core/check.hpp"
#include "terse/momentum_correction/concept.hpp"

// Momentum as an exponential moving average, as in Adam and its relatives.

namespace terse {

TERSE_NUMERICS_BEGIN

/// m = beta1 m + (1 - beta1) mean, equal on all ranks; direction m / (1 - beta1^t), or m without bias correction.
/// Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1.
struct ExponentialAverage {
  static constexpr CorrectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float beta1 = 0.9F;           ///< decay rate of the momentum; in [0, 1)
  bool bias_correction = true;  ///< true for Adam's bias correction

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"beta1", beta1, allowed::below_one}, {"bias_correction", bias_correction}}};
  }

  template <class Real>
  struct Rule {
    Real beta;
    bool corrects;
    std::array<Real, 1> at_step(std::uint64_t t) const {
      return {corrects ? terse::bias_correction(beta, t) : Real{1}};
    }
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      const Real m = beta * e[0] + (1 - beta) * mean;
      e[0] = m;
      return e.scalar(0) * m;
    }
  };
};

/// Nesterov's look-ahead on the average, by a factor that starts at half of beta1:
///
///     mu_t = beta1 (1 - 0.96^(momentum_decay t) / 2)          m = beta1 m + (1 - beta1) mean
///     direction = mu_(t+1) m / (1 - mu_1 ... mu_(t+1)) + (1 - mu_t) mean / (1 - mu_1 ... mu_t)
///
/// Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016, algorithm 2, in PyTorch's
/// form: m is an average with beta1 itself.
struct NesterovAverage {
  static constexpr CorrectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};
  /// The momentum_decay with which the factor is beta1 from the first step on.
  static constexpr float at_once = 1000;

  float beta1 = 0.9F;             ///< decay rate of the momentum; in [0, 1)
  float momentum_decay = 0.004F;  ///< speed at which the look-ahead factor approaches beta1; >= 0

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {
        {{"beta1", beta1, allowed::below_one}, {"momentum_decay", momentum_decay, allowed::not_negative}}};
  }

  template <class Real>
  struct Rule {
    Real beta, decay;
    std::array<Real, 2> at_step(std::uint64_t t) const {
      const auto now = static_cast<Real>(ahead(t)), next = static_cast<Real>(ahead(t + 1));
      return {next * static_cast<Real>(1 / (1 - product(t + 1))),
              (1 - now) * static_cast<Real>(1 / (1 - product(t)))};
    }
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      const Real m = beta * e[0] + (1 - beta) * mean;
      e[0] = m;
      return e.scalar(0) * m + e.scalar(1) * mean;
    }

   private:
    /// Returns the look-ahead factor, mu_t.
    double ahead(std::uint64_t t) const {
      return static_cast<double>(beta) *
             (1 - std::pow(0.96, static_cast<double>(decay) * static_cast<double>(t)) / 2);
    }
    /// Returns the product mu_1 ... mu_t, or a number p so small that 1 - p is 1. The product is a power once mu_t is beta1.
    double product(std::uint64_t t) const {
      double all = 1;
      for (std::uint64_t k = 1; k <= t && all > 0x1p-60; ++k) {
        const double mu = ahead(k);
        if (mu == static_cast<double>(beta)) return all * std::pow(mu, static_cast<double>(t - k + 1));
        all *= mu;
      }
      return all;
    }
  };
};

/// The common average, which each rank updates by its own gradient before compression, as in 1-bit Adam. The message
/// is beta1 m + (1 - beta1) g_i, and m is the mean of the messages. Source: Tang et al., "1-bit Adam", ICML 2021,
/// algorithm 1.
struct LocalAverage {
  static constexpr CorrectionFacts facts{.common = true};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float beta1 = 0.9F;  ///< decay rate of the momentum; in [0, 1)

  constexpr std::array<HyperParameter, 1> hyper_parameters() const {
    return {{{"beta1", beta1, allowed::below_one}}};
  }

  template <class Real>
  struct Rule {
    using ReplacesOf = Rule;
    Real beta;
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      return beta * e[0] + (1 - beta) * e.g();
    }
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      e[0] = mean;
      return mean;
    }
    template <class Element>
    TERSE_HD Real exact_direction(const Element& e, Real mean) const {
      return direction(e, beta * e[0] + (1 - beta) * mean);
    }
    /// Freezes the elements that are masked from this point on.
    template <class Element>
    TERSE_HD void carry(const Element& e, bool keep) const {
      e[0] = keep_if(keep, e[0]);
    }
  };
};

/// Lion's two averages with one buffer: the direction is beta1 m + (1 - beta1) mean, and then m = beta2 m + (1 - beta2)
/// mean. With SignStep it is Lion. Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023,
/// algorithm 2.
struct LionInterpolation {
  static constexpr CorrectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float beta1 = 0.9F;   ///< decay rate in the direction; in [0, 1)
  float beta2 = 0.99F;  ///< decay rate of the stored momentum; in [0, 1)

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"beta1", beta1, allowed::below_one}, {"beta2", beta2, allowed::below_one}}};
  }

  template <class Real>
  struct Rule {
    Real beta1, beta2;
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      const Real m = e[0];
      e[0] = beta2 * m + (1 - beta2) * mean;
      return beta1 * m + (1 - beta1) * mean;
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
