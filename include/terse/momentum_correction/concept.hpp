// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/half.hpp"
#include "terse/core/step_scalars.hpp"
#include "terse/executor/concept.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// This rank's own gradient, scaled as this step wants it.
template <Number G = float>
struct ScaledGradient {
  const G* gradients;
  const StepScalars* now;
  float scale = 1;

  TERSE_HD void enter(const Piece&) { scale = now->gradient_scale; }
  TERSE_HD float operator()(const Piece&, index_t i) const { return widened(gradients[i]) * scale; }
};
template <Number G>
ScaledGradient(const G*, const StepScalars*) -> ScaledGradient<G>;

TERSE_NUMERICS_END

/// Where momentum stands between gradient and parameters. A copyable policy that makes, from its own buffer
/// `velocity` of n floats (none if `!stateful`),
///
///     message(gradient, velocity)             what a rank says of a compressed segment: a message functor, from a
///                                             ScaledGradient; may have sent(i, keep, decoded), see Codec
///     direction(velocity)                     float operator()(i, mean): where the mean points there
///     exact_direction(velocity)               the same for segments that are averaged exactly, whose message
///                                             is the gradient
///
/// Local policies change `velocity` in the message, so that it differs between ranks; a message is evaluated
/// once for each element. Nothing that is not finite enters `velocity`.
template <class M>
concept MomentumCorrection = std::copyable<M> &&
    requires(const M& policy, const ScaledGradient<float>& gradient, float* velocity) {
  { M::stateful } -> std::convertible_to<bool>;
  policy.check();
  policy.message(gradient, velocity);
  policy.direction(velocity);
  policy.exact_direction(velocity);
};

/// Says in words what a type lacks to be a momentum correction.
template <class M>
constexpr bool check_momentum_correction() {
  static_assert(MomentumCorrection<M>,
                "terse: a momentum correction needs `static constexpr bool stateful`, check(), "
                "message(gradient, "
                "velocity), direction(velocity) and exact_direction(velocity)");
  return MomentumCorrection<M>;
}

TERSE_NUMERICS_BEGIN

namespace detail {

/// velocity = beta velocity + g; points along it or, with Nesterov, along g + beta velocity.
struct Momentum {
  float* velocity;
  float beta;
  bool nesterov;
  TERSE_HD float operator()(index_t i, float g) const {
    const float v = beta * velocity[i] + g;
    velocity[i] = keep_if(is_finite(v), v, velocity[i]);
    return keep_if(nesterov, g + beta * v, v);
  }
};

/// The mean as it is.
struct Straight {
  TERSE_HD float operator()(index_t, float mean) const { return mean; }
};

/// A message that passes the gradient through a local momentum.
template <class Gradient, class Step>
struct LocalMessage {
  Gradient gradient;
  Step step;
  TERSE_HD void enter(const Piece& piece) { gradient.enter(piece); }
  TERSE_HD float operator()(const Piece& piece, index_t i) const { return step(i, gradient(piece, i)); }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
