// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/layer_statistic.hpp"

// The functors of OneBitLamb, over elements and over segments.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// m_i = beta1 m + (1 - beta1) g_i: the common momentum, moved by this rank's own gradient.
template <Number G = float>
struct LocalMomentum {
  const float* momentum;
  const G* gradients;
  const StepScalars* now;
  float beta1;
  float scale = 1;

  TERSE_HD void enter(const Piece&) { scale = now->gradient_scale; }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    return beta1 * momentum[i] + (1 - beta1) * (widened(gradients[i]) * scale);
  }
};

/// m and v from the mean gradient.
struct AdamMoments {
  float *momentum, *variance;
  float beta1, beta2;
  float gradient_factor = 1;

  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float g = mean * gradient_factor;
    const float m = beta1 * momentum[i] + (1 - beta1) * g;
    const float v = beta2 * variance[i] + (1 - beta2) * (g * g);
    momentum[i] = m;
    variance[i] = v;
  }
};

/// Adam's direction with weight decay, before any layer-wise factor.
struct LambDirection {
  const float *momentum, *variance, *parameters;
  const Rate* rates;
  float epsilon;
  float decay = 0;

  TERSE_HD void enter(const Piece& piece) { decay = rates[piece.segment].weight_decay; }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    return momentum[i] / (std::sqrt(variance[i]) + epsilon) + decay * parameters[i];
  }
};

/// x = x - learning_rate c u, c the segment's.
template <Number P, class Direction>
struct DescendByLayer {
  ParameterRef<P> parameters;
  Direction direction;
  const Rate* rates;
  const float* coefficients;  // by segment
  float rate = 0;

  TERSE_HD void enter(const Piece& piece) {
    terse::enter(direction, piece);
    rate = rates[piece.segment].learning_rate * coefficients[piece.segment];
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool) const {
    parameters.set(i, parameters[i] - rate * direction(piece, i));
  }
};

/// c = ||x|| / ||u|| within bounds, 1 where a norm is 0. An element of its range is a segment.
struct TrustRatio {
  LayerTable weights, updates;
  float* coefficients;
  float least, most;

  TERSE_HD float of(index_t segment) const {
    if (!weights.has(segment)) return 1;
    const float x = weights[segment], u = updates[segment];
    if (!(x > 0 && u > 0)) return 1;
    const float c = x / u;
    return c < least ? least : c > most ? most : c;
  }
  TERSE_HD void operator()(const Piece&, index_t segment) const { coefficients[segment] = of(segment); }
};

/// What OneBitLamb knows of each segment, in the executor's memory.
struct LambLayers {
  float* coefficients;           // in force in this step
  float* frozen;                 // moving average of coefficients, until the freeze; 0: never moved
  float* factors;                // the last step's f
  float* scales;                 // of the momentum in messages
  const std::uint8_t* excluded;  // segments that are never compressed
};

/// This step's c of full precision, and its moving average. An element of its range is a segment.
struct LearnCoefficient {
  TrustRatio trust;
  LambLayers layers;
  float beta;

  TERSE_HD void operator()(const Piece&, index_t s, bool) const {
    const float c = trust.of(s);
    layers.coefficients[s] = c;
    if (c != 1) layers.frozen[s] = beta * layers.frozen[s] + (1 - beta) * c;
  }
};

/// r = ||m|| / sqrt(n) of each segment, and scales = mean r / r, so that one message serves all of them. Segments
/// without momentum keep 1 and don't count. Momentum that has faded, since gradients stayed away, is not blown up
/// further than `most`: gradients that come back would overflow. Runs over one element.
struct BalanceScales {
  static constexpr float most = 0x1p24F;
  LayerTable norms;
  const float* roots;  // sqrt(n) by segment
  LambLayers layers;
  index_t segments;

  TERSE_HD float size_of(index_t s) const {
    return layers.excluded[s] == 0 && norms.has(s) ? norms[s] / roots[s] : 0.0F;
  }
  TERSE_HD void operator()(const Piece&, index_t) const {
    float sum = 0, count = 0;
    for (index_t s = 0; s < segments; ++s) {
      const float r = size_of(s);
      sum += r;
      count += r > 0 ? 1.0F : 0.0F;
    }
    for (index_t s = 0; s < segments; ++s) {
      const float r = size_of(s);
      const float scale = r > 0 ? sum / count / r : 1.0F;
      layers.scales[s] = scale < most ? scale : most;
      layers.factors[s] = 1;
    }
  }
};

/// The fresh variance starts as the frozen one, whose reciprocal root is at hand.
struct RestoreVariance {
  const float* inverse;
  float* fresh;
  float epsilon;
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const float root = 1 / inverse[i] - epsilon;
    fresh[i] = inverse[i] > 0 ? root * root : 0.0F;
  }
};

/// (beta1 m + (1 - beta1) g) times the segment's scale.
template <Number G>
struct ScaledMomentum {
  LocalMomentum<G> momentum;
  const float* scales;
  float scale = 1;
  TERSE_HD void enter(const Piece& piece) {
    momentum.enter(piece);
    scale = scales[piece.segment];
  }
  TERSE_HD float operator()(const Piece& piece, index_t i) const { return momentum(piece, i) * scale; }
};

/// m, and the fresh variance from the gradient that m's move stands for.
struct RefreshVariance {
  float *momentum, *fresh;
  const float* scales;
  float beta1, beta2;
  float scale = 1;
  TERSE_HD void enter(const Piece& piece) { scale = scales[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float m = mean / scale;
    const float g = (m - beta1 * momentum[i]) / (1 - beta1);
    const float v = beta2 * fresh[i] + (1 - beta2) * (g * g);
    momentum[i] = m;
    fresh[i] = v;
  }
};

/// u of a compressed segment over the frozen variance, of an excluded one over the live one. Without decay: u0.
struct FrozenDirection {
  LambDirection live;
  const float* inverse;
  float clip;
  const std::uint8_t* excluded;
  bool decays;
  bool is_live = false;
  float decay = 0;

  TERSE_HD void enter(const Piece& piece) {
    live.enter(piece);
    is_live = excluded[piece.segment] != 0;
    decay = decays ? live.decay : 0.0F;
  }
  TERSE_HD float operator()(const Piece& piece, index_t i) const {
    if (is_live) return live(piece, i);
    const float wanted = live.momentum[i] * inverse[i];
    const float below = wanted > clip ? clip : wanted;
    return (below < -clip ? -clip : below) + decay * live.parameters[i];
  }
};

/// How much larger the frozen root is than the fresh one.
struct RootRatio {
  const float *inverse, *fresh;
  float epsilon;
  TERSE_HD float operator()(const Piece&, index_t i) const {
    const float d = inverse[i];
    const float ratio = 1 / (d * (std::sqrt(fresh[i]) + epsilon));
    return d > 0 ? ratio : 0.0F;
  }
};

/// f and with it this step's coefficient. An element of its range is a segment.
struct FreshFactor {
  TrustRatio trust;          // of excluded segments
  LayerTable ratios, plain;  // largest root ratios; ||u0||
  LambLayers layers;
  const Rate* rates;
  float least, most, threshold;

  TERSE_HD static float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
  TERSE_HD void operator()(const Piece&, index_t s, bool) const {
    if (layers.excluded[s] != 0 || !ratios.has(s)) {
      layers.coefficients[s] = trust.of(s);
      return;
    }
    float f = ratios[s];
    if (rates[s].weight_decay > 0 && trust.updates[s] > 0) {
      const float q = clamp(plain[s] / trust.updates[s], 0, 1);
      f = f * q + (1 - q);
    }
    const float last = layers.factors[s];
    f = clamp(clamp(f, least, most), last * (1 - threshold), last * (1 + threshold));
    layers.factors[s] = f;
    const float frozen = layers.frozen[s];
    layers.coefficients[s] = (frozen > 0 ? frozen : 1.0F) * f;
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
