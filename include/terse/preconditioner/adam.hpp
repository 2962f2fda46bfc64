// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/step_scalars.hpp"
#include "terse/preconditioner/concept.hpp"
#include "terse/preconditioner/weights.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// One element of Adam, given the mean gradient g:
///
///     g = g * gradient_factor          m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
///     x = x - learning_rate * (first m / (sqrt(second v) + epsilon) + weight_decay x)
///
/// first = 1 / (1 - beta1^t) and second = 1 / (1 - beta2^t) correct the bias; 1 leaves it.
/// Sources: Kingma and Ba, "Adam", ICLR 2015, algorithm 1; Loshchilov and Hutter, ICLR 2019, algorithm 2.
template <Number P = float>
struct AdamUpdate {
  float* momentum;
  float* variance;
  Weights<P> parameters;
  const Rate* rates;
  const StepScalars* now;
  float beta1, beta2, epsilon;
  float gradient_factor = 1;
  float first = 1, second = 1;
  Rate rate{};

  TERSE_HD void enter(const Piece& piece) {
    first = now->first;
    second = now->second;
    rate = rates[piece.segment];
  }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float g = mean * gradient_factor;
    const float m = beta1 * momentum[i] + (1 - beta1) * g;
    const float v = beta2 * variance[i] + (1 - beta2) * (g * g);
    const float x = parameters[i];
    momentum[i] = m;
    variance[i] = v;
    const float direction = (first * m) / (std::sqrt(second * v) + epsilon);
    parameters.set(i, x - rate.learning_rate * (direction + rate.weight_decay * x));
  }
};

TERSE_NUMERICS_END

}  // namespace terse
