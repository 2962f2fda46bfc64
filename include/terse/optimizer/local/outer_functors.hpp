// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/recipe.hpp"

// The messages of local methods, and the functors that apply a mean to one element.

namespace terse {

/// Up to two buffers of n floats that an outer rule keeps, and the rates of its steps.
struct OuterBuffers {
  float* first = nullptr;       ///< n floats, if the rule keeps any
  float* second = nullptr;      ///< n floats, if the rule keeps two
  const Rate* rates = nullptr;  ///< by segment, if the rule takes them
};

namespace detail {

TERSE_NUMERICS_BEGIN

/// Parameters as a message.
template <Number P>
struct ReadParameters {
  ParameterRef<P> parameters;
  using StreamsOf = ReadParameters;
  TERSE_HD auto streams() { return reads(parameters.values); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return parameters[i]; }
};

/// The gradient before scaling, as a message.
template <Number G>
struct Raw {
  const G* gradients;
  using StreamsOf = Raw;
  TERSE_HD auto streams() { return reads(gradients); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return widened(gradients[i]); }
};

struct WriteMean {
  float* to;
  using StreamsOf = WriteMean;
  TERSE_HD auto streams() { return writes(to); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const { to[i] = mean; }
};

/// The negative move of this rank from the anchor.
template <Number P>
struct Move {
  ParameterRef<P> parameters;
  const float* anchor;
  using StreamsOf = Move;
  TERSE_HD auto streams() { return reads(parameters.values) + reads(anchor); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return anchor[i] - parameters[i]; }
};

/// The anchor, moved by a share `rate` of this rank's move.
template <Number P>
struct MovedAnchor {
  ParameterRef<P> parameters;
  const float* anchor;
  float rate;
  using StreamsOf = MovedAnchor;
  TERSE_HD auto streams() { return reads(parameters.values) + reads(anchor); }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    return anchor[i] + rate * (parameters[i] - anchor[i]);
  }
};

/// A Move that records its sent part in `traded`.
template <Number P>
struct TradedMove {
  Move<P> move;
  float* traded;
  using StreamsOf = TradedMove;
  TERSE_HD auto streams() { return move.streams(); }
  TERSE_HD float operator()(const Piece& piece, index_t i) const { return move(piece, i); }
  TERSE_HD void sent(index_t i, bool, float decoded) const { traded[i] = decoded; }
};
/// A Move that is sent as a whole, recorded in `traded`.
template <Number P>
struct TradedWhole {
  Move<P> move;
  float* traded;
  using StreamsOf = TradedWhole;
  TERSE_HD auto streams() { return move.streams() + writes(traded); }
  TERSE_HD float operator()(const Piece& piece, index_t i) const { return traded[i] = move(piece, i); }
};
/// The step of the anchor by the mean, which a rank receives in exchange for its sent part.
struct GiveForMean {
  float *anchor, *traded;
  using StreamsOf = GiveForMean;
  TERSE_HD auto streams() { return updates(anchor) + updates(traded); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    anchor[i] -= mean;
    traded[i] -= mean;
  }
};
template <Number P>
struct TakeTrade {
  ParameterRef<P> parameters;
  float* traded;
  using StreamsOf = TakeTrade;
  TERSE_HD auto streams() { return parameters.streams() + updates(traded); }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    parameters.set(i, parameters[i] + traded[i]);
    traded[i] = 0;
  }
};

/// A trade that is called off.
struct CancelTrade {
  float* traded;
  using StreamsOf = CancelTrade;
  TERSE_HD auto streams() { return writes(traded); }
  TERSE_HD void operator()(const Piece&, index_t i) const { traded[i] = 0; }
};

/// The inner recipe's result, in a separate buffer, as a message. The buffer keeps `decay` times the unsent part.
struct Unsent {
  float* unsent;
  float decay;
  using StreamsOf = Unsent;
  TERSE_HD auto streams() { return updates(unsent); }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    const float moved = unsent[i];
    unsent[i] = decay * moved;
    return -moved;
  }
  TERSE_HD void sent(index_t i, bool, float decoded) const { unsent[i] += decay * decoded; }
};
/// The inner recipe's result as a message that is sent as a whole; the buffer becomes 0.
struct UnsentWhole {
  float* unsent;
  using StreamsOf = UnsentWhole;
  TERSE_HD auto streams() { return updates(unsent); }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    const float moved = unsent[i];
    unsent[i] = 0;
    return -moved;
  }
};
TERSE_HD inline float sign_of(float x) { return keep_if(x > 0, 1.0F) - keep_if(x < 0, 1.0F); }
/// A step of the anchor by the sign of the mean.
struct SignAnchor {
  float* anchor;
  const Rate* rates;
  Rate rate{};
  using StreamsOf = SignAnchor;
  TERSE_HD auto streams() { return updates(anchor); }
  TERSE_HD void enter(const Piece& piece) { rate = rates[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float x = anchor[i];
    anchor[i] = x - rate.learning_rate * (sign_of(mean) + rate.weight_decay * x);
  }
};
/// The parameters at the point to which the anchor would step if the mean were this rank's unsent part.
template <Number P>
struct LookAhead {
  ParameterRef<P> parameters;
  const float *anchor, *unsent;
  const Rate* rates;
  Rate rate{};
  using StreamsOf = LookAhead;
  TERSE_HD auto streams() { return parameters.streams() + reads(anchor) + reads(unsent); }
  TERSE_HD void enter(const Piece& piece) { rate = rates[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float x = anchor[i];
    parameters.set(i, x - rate.learning_rate * (sign_of(-unsent[i]) + rate.weight_decay * x));
  }
};

template <Number P>
struct KeepAnchor {
  ParameterRef<P> parameters;
  float* anchor;
  using StreamsOf = KeepAnchor;
  TERSE_HD auto streams() { return reads(parameters.values) + writes(anchor); }
  TERSE_HD void operator()(const Piece&, index_t i) const { anchor[i] = parameters[i]; }
};

template <Number P>
struct TakeMean {
  ParameterRef<P> parameters;
  using StreamsOf = TakeMean;
  TERSE_HD auto streams() { return parameters.streams(); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const { parameters.set(i, mean); }
};

/// The step of anchor and parameters along the mean move.
template <Number P>
struct MoveAnchor {
  ParameterRef<P> parameters;
  float* anchor;
  float rate;
  using StreamsOf = MoveAnchor;
  TERSE_HD auto streams() { return parameters.streams() + updates(anchor); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float x = anchor[i] - rate * mean;
    anchor[i] = x;
    parameters.set(i, x);
  }
};

/// The weighted mean of parameters and anchor; local_share is the weight of the parameters.
template <Number P>
struct MixWithAnchor {
  ParameterRef<P> parameters;
  const float* anchor;
  float local_share;
  using StreamsOf = MixWithAnchor;
  TERSE_HD auto streams() { return parameters.streams() + reads(anchor); }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    // Exact for shares of 0 and 1.
    parameters.set(i, local_share * parameters[i] + (1 - local_share) * anchor[i]);
  }
};

struct OuterPoint {
  const float *anchor, *velocity;
  float* to;
  float ahead;
  using StreamsOf = OuterPoint;
  TERSE_HD auto streams() { return reads(anchor) + reads(velocity) + writes(to); }
  TERSE_HD void operator()(const Piece&, index_t i) const { to[i] = anchor[i] + ahead * velocity[i]; }
};

/// The outer step of the anchor, which returns the new anchor.
template <bool Nesterov>
struct StepAnchor {
  float *anchor, *velocity;
  const StepScalars* now;
  int ratio_at;  // the index of the ratio of this step's learning rate to that of the last outer step
  float rate, momentum;
  float ratio = 1;

  using StreamsOf = StepAnchor;
  TERSE_HD auto streams() { return updates(anchor) + updates(velocity); }
  TERSE_HD void enter(const Piece&) { ratio = now->own[static_cast<std::size_t>(ratio_at)]; }
  TERSE_HD float operator()(const Piece&, index_t i, float mean) const {
    const float v = momentum * ratio * velocity[i] + mean;
    const float x = anchor[i] - rate * (Nesterov ? mean + momentum * v : v);
    velocity[i] = v;
    anchor[i] = x;
    return x;
  }
};

/// The outer step of the anchor and the parameters.
template <Number P, bool Nesterov>
struct StepOutside {
  ParameterRef<P> parameters;
  StepAnchor<Nesterov> step;

  using StreamsOf = StepOutside;
  TERSE_HD auto streams() { return parameters.streams() + step.streams(); }
  TERSE_HD void enter(const Piece& piece) { step.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    parameters.set(i, step(piece, i, mean));
  }
};

/// The outer step of methods whose ranks send parameters, since each rank has a separate anchor.
template <Number P>
struct StepFromMean {
  ParameterRef<P> parameters;
  StepAnchor<false> step;

  using StreamsOf = StepFromMean;
  TERSE_HD auto streams() { return parameters.streams() + step.streams(); }
  TERSE_HD void enter(const Piece& piece) { step.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    parameters.set(i, step(piece, i, step.anchor[i] - mean));
  }
};

/// The outer step towards a mixture of moved anchors, see MovedAnchor.
template <Number P>
struct StepFromMixture {
  ParameterRef<P> parameters;
  StepAnchor<true> step;

  using StreamsOf = StepFromMixture;
  TERSE_HD auto streams() { return parameters.streams() + step.streams(); }
  TERSE_HD void enter(const Piece& piece) { step.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, float own, float difference) const {
    parameters.set(i, step(piece, i, step.anchor[i] - (own + difference)));
  }
};

template <Number P>
struct PullBackStep {
  ParameterRef<P> parameters;
  const float* anchor;
  float* velocity;
  const StepScalars* now;
  int ratio_at;  // see StepAnchor
  float pullback, momentum;
  float ratio = 1;

  using StreamsOf = PullBackStep;
  TERSE_HD auto streams() { return parameters.streams() + reads(anchor) + updates(velocity); }
  TERSE_HD void enter(const Piece&) { ratio = now->own[static_cast<std::size_t>(ratio_at)]; }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float z = anchor[i];
    // Exact for a pullback of 0 and 1.
    const float x = (1 - pullback) * parameters[i] + pullback * z;
    velocity[i] = momentum * ratio * velocity[i] + (z - x);
    parameters.set(i, x);
  }
};

struct AheadOfAnchor {
  const float *anchor, *velocity;
  using StreamsOf = AheadOfAnchor;
  TERSE_HD auto streams() { return reads(anchor) + reads(velocity); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return anchor[i] - velocity[i]; }
};

/// The anchor of a rank whose own AheadOfAnchor is the mean.
struct StepAhead {
  float* anchor;
  const float* velocity;
  using StreamsOf = StepAhead;
  TERSE_HD auto streams() { return updates(anchor) + reads(velocity); }
  TERSE_HD void operator()(const Piece&, index_t i) const { anchor[i] -= velocity[i]; }
};

template <Number P>
struct CorrectDelay {
  ParameterRef<P> parameters;
  const float* mean;
  float* snapshot;

  using StreamsOf = CorrectDelay;
  TERSE_HD auto streams() { return parameters.streams() + reads(mean) + updates(snapshot); }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float x = mean[i] + (parameters[i] - snapshot[i]);
    snapshot[i] = x;
    parameters.set(i, x);
  }
};

TERSE_NUMERICS_END

}  // namespace detail

}  // namespace terse
