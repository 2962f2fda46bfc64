// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/error.hpp"
#include "terse/momentum_correction/concept.hpp"

namespace terse {

namespace detail {

inline void check_momentum(float momentum) {
  if (!(momentum >= 0 && momentum < 1))
    throw usage_error("momentum must be in [0, 1), not " + std::to_string(momentum));
}
template <class Visit>
void momentum_settings(float momentum, bool nesterov, Visit&& visit) {
  visit("momentum", static_cast<double>(momentum));
  visit("nesterov", nesterov ? 1.0 : 0.0);
}

}  // namespace detail

/// No momentum at all, and no memory for it.
struct NoMomentum {
  static constexpr bool stateful = false;
  static void check() {}
  template <class Visit>
  void settings(Visit&&) const {}
  template <Number G>
  static ScaledGradient<G> message(const ScaledGradient<G>& gradient, float*) {
    return gradient;
  }
  static detail::Straight direction(float*) { return {}; }
  static detail::Straight exact_direction(float*) { return {}; }
};

/// Momentum on the mean, the same on all ranks: v = momentum v + mean, direction v, or mean + momentum v for
/// Nesterov. Source: Polyak 1964; Sutskever et al., ICML 2013, in the form without dampening.
struct HeavyBall {
  static constexpr bool stateful = true;

  float momentum = 0.9F;
  bool nesterov = false;

  void check() const { detail::check_momentum(momentum); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::momentum_settings(momentum, nesterov, visit);
  }
  template <Number G>
  static ScaledGradient<G> message(const ScaledGradient<G>& gradient, float*) {
    return gradient;
  }
  detail::Momentum direction(float* velocity) const { return {velocity, momentum, nesterov}; }
  detail::Momentum exact_direction(float* velocity) const { return direction(velocity); }
};

/// Momentum before compression, of each rank's own gradient: v_i = momentum v_i + g_i, message g_i + momentum v_i
/// (Nesterov) or v_i. Source: Zheng, Huang and Kwok, "Communication-efficient distributed blockwise momentum SGD
/// with error-feedback", NeurIPS 2019, algorithm 2.
struct LocalMomentumBefore {
  static constexpr bool stateful = true;

  float momentum = 0.9F;
  bool nesterov = true;

  void check() const { detail::check_momentum(momentum); }
  template <class Visit>
  void settings(Visit&& visit) const {
    detail::momentum_settings(momentum, nesterov, visit);
  }
  template <Number G>
  detail::LocalMessage<ScaledGradient<G>, detail::Momentum> message(const ScaledGradient<G>& gradient,
                                                                    float* velocity) const {
    return {gradient, {velocity, momentum, nesterov}};
  }
  static detail::Straight direction(float*) { return {}; }
  detail::Momentum exact_direction(float* velocity) const { return {velocity, momentum, nesterov}; }
};

}  // namespace terse
