// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/recipe.hpp"

// The functors of ZeroOneAdam, over elements and over segments.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

TERSE_HD inline float clamped(float x, float bound) {
  const float below = x > bound ? bound : x;
  return below < -bound ? -bound : below;
}

/// A step by the mean gradient. If `Learns`, the mean is exact, and the variance is also updated. Elements without variance
/// don't move.
template <Number P, bool Learns>
struct StepTogether {
  float *momentum, *variance;
  ParameterRef<P> parameters;
  const Rate* rates;
  float beta1, beta2, epsilon, clip;
  float gradient_factor = 1;
  Rate rate{};

  using StreamsOf = StepTogether;
  TERSE_HD auto streams() {
    constexpr Access access = Learns ? Access::updates : Access::reads;
    return updates(momentum) + stream<access>(variance, nullptr) + parameters.streams();
  }
  TERSE_HD void enter(const Piece& piece) { rate = rates[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float g = mean * gradient_factor, x = parameters[i];
    const float m = beta1 * momentum[i] + (1 - beta1) * g;
    const float v = Learns ? beta2 * variance[i] + (1 - beta2) * (g * g) : variance[i];
    const bool live = v > 0;
    const float direction = keep_if(live, clamped(m / (std::sqrt(v) + epsilon), clip));
    momentum[i] = keep_if(live, m);
    if constexpr (Learns) variance[i] = v;
    parameters.set(i, x - rate.learning_rate * (direction + rate.weight_decay * x));
  }
};

/// Sums since the last synchronization, by segment. Let u be `moves`. Without a clamp, a rank's parameters are x =
/// kept anchor - u d.
struct SinceMeeting {
  float* rates;  // sum of learning rates, decayed like the moves
  float* kept;   // factor by which weight decay has shrunk the anchor
};

/// Counts a step of one segment; each element of its range is a segment.
struct CountStep {
  SinceMeeting since;
  const Rate* rates;
  TERSE_HD void operator()(const Piece&, index_t s) const {
    const float left = 1 - rates[s].learning_rate * rates[s].weight_decay;
    since.rates[s] = left * since.rates[s] + rates[s].learning_rate;
    since.kept[s] = left * since.kept[s];
  }
};

/// A local step of one rank: updates m by the rank's gradient and x by m d; u sums the moves of x before their multiplication
/// by d.
template <Number P>
struct StepAlone {
  float *momentum, *moves;
  const float* inverse;
  ParameterRef<P> parameters;
  const Rate* rates;
  float beta1, clip;
  Rate rate{};
  float left = 1;

  using StreamsOf = StepAlone;
  TERSE_HD auto streams() {
    return updates(momentum) + updates(moves) + reads(inverse) + parameters.streams();
  }
  TERSE_HD void enter(const Piece& piece) {
    rate = rates[piece.segment];
    left = 1 - rate.learning_rate * rate.weight_decay;
  }
  TERSE_HD void operator()(const Piece&, index_t i, float gradient) const {
    const float x = parameters[i];
    const float m = beta1 * momentum[i] + (1 - beta1) * gradient;
    const float u = left * moves[i] + rate.learning_rate * m;
    const float direction = clamped(m * inverse[i], clip);
    momentum[i] = m;
    moves[i] = u;
    parameters.set(i, x - rate.learning_rate * (direction + rate.weight_decay * x));
  }
};

/// A rank's momentum, averaged over its steps since the last synchronization; the current momentum if all rates were 0.
struct MeanMomentum {
  const float *momentum, *moves;
  const float* rates;
  bool moved = false;
  float sum = 1;
  using StreamsOf = MeanMomentum;
  TERSE_HD auto streams() { return reads(momentum) + reads(moves); }
  TERSE_HD void enter(const Piece& piece) {
    moved = rates[piece.segment] > 0;
    sum = keep_if(moved, rates[piece.segment], 1.0F);
  }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    return keep_if(moved, moves[i], momentum[i]) / sum;
  }
};

/// The synchronization: all ranks step from the anchor along the mean of their momenta.
template <Number P>
struct Meet {
  float *momentum, *moves, *anchor;
  const float* inverse;
  ParameterRef<P> parameters;
  SinceMeeting since;
  float clip;
  float sum = 0, kept = 1;

  using StreamsOf = Meet;
  TERSE_HD auto streams() {
    return writes(momentum) + writes(moves) + updates(anchor) + reads(inverse) + parameters.streams();
  }
  TERSE_HD void enter(const Piece& piece) {
    sum = since.rates[piece.segment];
    kept = since.kept[piece.segment];
  }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float x = kept * anchor[i] - sum * clamped(mean * inverse[i], clip);
    momentum[i] = mean;
    moves[i] = 0;
    anchor[i] = x;
    parameters.set(i, x);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
