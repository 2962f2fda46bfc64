// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// u = momentum u + g, or momentum (u + g) with the message u + g for Nesterov; 0 again once sent.
template <Number G>
struct MaskedMomentum {
  ScaledGradient<G> gradient;
  float* velocity;
  float beta;
  bool nesterov;
  TERSE_HD void enter(const Piece& piece) { gradient.enter(piece); }
  TERSE_HD float operator()(const Piece& piece, index_t i) const {
    const float g = gradient(piece, i);
    const float u = keep_if(nesterov, beta * (velocity[i] + g), beta * velocity[i] + g);
    velocity[i] = keep_if(is_finite(u), u, velocity[i]);
    return u + keep_if(nesterov, g);
  }
  TERSE_HD void sent(index_t i, bool keep, float decoded) const {
    velocity[i] = keep_if(keep && decoded == 0, velocity[i]);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// Deep gradient compression's momentum correction with factor masking: what accumulates in the error feedback is
/// the momentum, not the gradient, and the momentum of an element that has been sent starts anew:
///
///     u_i = momentum u_i + g_i        message u_i        u_i = 0 where sent
///
/// Segments that are averaged exactly take ordinary momentum on the mean. Source: Lin, Han, Mao, Wang and Dally,
/// "Deep gradient compression", ICLR 2018, sections 3.1 and 3.2.
struct FactorMasking {
  static constexpr bool stateful = true;

  float momentum = 0.9F;
  bool nesterov = false;

  void check() const { detail::check_momentum(momentum); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::momentum_settings(momentum, nesterov, visit);
  }
  template <Number G>
  detail::MaskedMomentum<G> message(const ScaledGradient<G>& gradient, float* velocity) const {
    return {gradient, velocity, momentum, nesterov};
  }
  static detail::Straight direction(float*) { return {}; }
  detail::Momentum exact_direction(float* velocity) const { return {velocity, momentum, nesterov}; }
};

}  // namespace terse
