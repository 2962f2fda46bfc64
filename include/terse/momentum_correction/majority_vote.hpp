// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// The meaning of a sum of votes that is 0.
enum class Tie {
  plus,  ///< a step in the + direction, since a one-bit code cannot represent a tie
  zero   ///< no step; packets need a third level, UnitTernary
};

namespace detail {

/// Returns the outcome of a vote.
template <Tie T, class Real>
TERSE_HD Real outcome(Real sum) {
  if constexpr (T == Tie::plus)
    return sum < 0 ? -1 : 1;
  else
    return keep_if(sum > 0, Real{1}) - keep_if(sum < 0, Real{1});
}

}  // namespace detail

/// Votes by the sign of each rank's averaged gradient; the direction is the sign of their sum:
///
///     m_i = momentum m_i + (1 - momentum) g_i        message m_i        direction sgn(sum_i sgn(m_i))
///
/// Segments that are averaged exactly move along the mean of m_i. Source: Bernstein, Zhao, Azizzadenesheli and
/// Anandkumar, "signSGD with majority vote is communication efficient and fault tolerant", ICLR 2019, algorithm 1.
template <Tie T>
struct Votes {
  static constexpr CorrectionFacts facts{.needs_whole_messages = true, .needs_zero = T == Tie::zero};
  static constexpr std::array<const char*, 1> state{"momentum"};

  float momentum = 0.9F;  ///< decay rate of the average; in [0, 1)

  constexpr std::array<HyperParameter, 1> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}}};
  }

  template <class Real>
  struct Rule {
    Real momentum;
    template <class Element>
    TERSE_HD Real average(const Element& e, Real g) const {
      const Real m = momentum * e[0] + (1 - momentum) * g;
      e[0] = keep_if(is_finite(m), m, e[0]);
      return m;
    }
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      return average(e, e.g());
    }
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return detail::outcome<T>(mean);
    }
    template <class Element>
    TERSE_HD Real exact_direction(const Element& e, Real mean) const {
      return average(e, mean);
    }
  };
};

/// Votes of one bit; a tie counts as +.
using MajorityVote = Votes<Tie::plus>;

TERSE_NUMERICS_END

}  // namespace terse
