// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// m = beta m + (1 - beta) g.
struct AverageMomentum {
  float* velocity;
  float beta;
  TERSE_HD float operator()(index_t i, float g) const {
    const float m = beta * velocity[i] + (1 - beta) * g;
    velocity[i] = keep_if(is_finite(m), m, velocity[i]);
    return m;
  }
};

/// +1 unless the sum of the votes is negative: a tie counts as +.
struct Vote {
  TERSE_HD float operator()(index_t, float mean) const { return mean < 0 ? -1.0F : 1.0F; }
};

}  // namespace detail

TERSE_NUMERICS_END

/// Each rank's averaged gradient as its vote, and the sign of the votes' sum as direction:
///
///     m_i = momentum m_i + (1 - momentum) g_i        message m_i        direction sgn(sum_i sgn(m_i))
///
/// Segments that are averaged exactly move along the mean of m_i. Source: Bernstein, Zhao, Azizzadenesheli and
/// Anandkumar, "signSGD with majority vote is communication efficient and fault tolerant", ICLR 2019, algorithm 1.
struct MajorityVote {
  static constexpr bool stateful = true;

  float momentum = 0.9F;

  void check() const { detail::check_momentum(momentum); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("momentum", static_cast<double>(momentum));
  }
  template <Number G>
  detail::LocalMessage<ScaledGradient<G>, detail::AverageMomentum> message(const ScaledGradient<G>& gradient,
                                                                           float* velocity) const {
    return {gradient, {velocity, momentum}};
  }
  static detail::Vote direction(float*) { return {}; }
  detail::AverageMomentum exact_direction(float* velocity) const { return {velocity, momentum}; }
};

}  // namespace terse
