// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "dense.hpp"
#include "one_bit_adam.hpp"
#include "terse/core/layout.hpp"

// Oracles of LAMB and 1-bit LAMB: all ranks in one thread, written from the formulas.

namespace terse::reference {

template <class Real>
Real norm_of(const Segment& segment, const Arena<Real>& values) {
  Real sum = 0;
  for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
    sum += values[at(k)] * values[at(k)];
  return std::sqrt(sum);
}

/// u = first m / (sqrt(second v) + eps) + wd x, first and second 1 / (1 - beta^t) with `bias_correction`, else 1;
/// c = |x| / |u| of each segment, within bounds, 1 where a norm is 0; x -= lr c u.
template <class Real = double>
struct Lamb {
  struct Options {
    Real beta1 = Real(0.9);
    Real beta2 = Real(0.999);
    Real epsilon = Real(1e-8);
    Real weight_decay = 0;
    Real min_coefficient = Real(0.01);
    Real max_coefficient = 10;
    bool bias_correction = true;
    Real clip_norm = std::numeric_limits<Real>::infinity();  ///< of the averaged gradient
  };

  Layout layout;
  std::size_t ranks;
  Options options;
  Arena<Real> parameters;
  Arena<Real> momentum;
  Arena<Real> variance;
  std::vector<Real> coefficients;  ///< the last step's, by segment
  index_t steps = 0;
  index_t clipped_low = 0, clipped_high = 0, without_norm = 0;  ///< how often c was none of |x| / |u|

  template <class Values>
  Lamb(Layout layout_, int ranks_, Options options_, const Values& start)
      : layout(std::move(layout_)),
        ranks(at(ranks_)),
        options(options_),
        parameters(start.begin(), start.end()),
        momentum(at(layout.size())),
        variance(at(layout.size())),
        coefficients(layout.segments().size(), Real{1}) {}

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, Real learning_rate) {
    ++steps;
    const Arena<Real> g = clipped_mean(layout, ranks, gradients, options.clip_norm);
    for (std::size_t s = 0; s < coefficients.size(); ++s) step_of(s, g, learning_rate);
  }

  /// The step of segment s, whose mean gradient is in g.
  void step_of(std::size_t s, const Arena<Real>& g, Real learning_rate) {
    const Segment& segment = layout.segments()[s];
    const Real t = static_cast<Real>(steps);
    const Real unbias1 = options.bias_correction ? 1 - std::pow(options.beta1, t) : Real{1};
    const Real unbias2 = options.bias_correction ? 1 - std::pow(options.beta2, t) : Real{1};
    const Real decay = options.weight_decay * static_cast<Real>(segment.weight_decay);
    Arena<Real> u(parameters.size());
    for (index_t j = segment.offset; j < segment.offset + segment.count; ++j) {
      const std::size_t k = at(j);
      momentum[k] = options.beta1 * momentum[k] + (1 - options.beta1) * g[k];
      variance[k] = options.beta2 * variance[k] + (1 - options.beta2) * g[k] * g[k];
      u[k] = momentum[k] / unbias1 / (std::sqrt(variance[k] / unbias2) + options.epsilon) +
             decay * parameters[k];
    }
    coefficients[s] = trust(segment, u);
    move(segment, u, learning_rate * coefficients[s]);
  }

  void move(const Segment& segment, const Arena<Real>& u, Real rate) {
    for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
      parameters[at(k)] -= rate * static_cast<Real>(segment.learning_rate_scale) * u[at(k)];
  }

 private:
  Real trust(const Segment& segment, const Arena<Real>& u) {
    const Real x = norm_of(segment, parameters), length = norm_of(segment, u);
    if (x == 0 || length == 0) {
      ++without_norm;
      return 1;
    }
    const Real c = x / length;
    if (c < options.min_coefficient) ++clipped_low;
    if (c > options.max_coefficient) ++clipped_high;
    return std::clamp(c, options.min_coefficient, options.max_coefficient);
  }
};

/// 1-bit LAMB. The exchange is 1-bit Adam's: with constant scales s, M = s m moves as its momentum does on gradients
/// s g. So an oracle of 1-bit Adam that stands still carries M, errors and doubts.
template <class Real = double>
struct OneBitLamb {
  struct Options {
    typename Lamb<Real>::Options lamb{};
    Topology topology = Topology::scatter_gather;
    index_t freeze = 1;  ///< the last step with full precision
    Real coefficient_beta = Real(0.9);
    Real min_factor = Real(0.5);
    Real max_factor = 4;
    Real factor_threshold = Real(0.1);
    Real update_clip = std::numeric_limits<Real>::infinity();
  };

  Options options;
  Lamb<Real> lamb;                            ///< parameters, momentum, variance; of excluded segments always
  std::optional<OneBitAdam<Real>> exchange;   ///< from the freeze on; its momentum is M
  Arena<Real> fresh;                          ///< v~
  std::vector<Real> frozen, factors, scales;  ///< by segment
  bool is_frozen = false;
  index_t limited = 0, bounded = 0, free = 0;  ///< factors held by the last one, by the bounds, by nothing

  template <class Values>
  OneBitLamb(const Layout& layout, int ranks, Options options_, const Values& start)
      : options(options_),
        lamb(layout, ranks, options_.lamb, start),
        fresh(at(layout.size())),
        frozen(layout.segments().size()),
        factors(frozen.size(), Real{1}),
        scales(frozen.size(), Real{1}) {}

  template <class Gradients>
  void step(const Gradients& gradients, Real learning_rate) {
    if (is_frozen) {
      compressed_step(read_gradients<Real>(lamb.layout, lamb.ranks, gradients), learning_rate);
      return;
    }
    lamb.step(gradients, learning_rate);
    for (std::size_t s = 0; s < frozen.size(); ++s)
      if (const Real c = lamb.coefficients[s]; c != 1)
        frozen[s] = options.coefficient_beta * frozen[s] + (1 - options.coefficient_beta) * c;
    if (lamb.steps == options.freeze) freeze();
  }

 private:
  const std::vector<Segment>& segments() const { return lamb.layout.segments(); }

  void freeze() {
    is_frozen = true;
    typename OneBitAdam<Real>::Options plain;
    plain.topology = options.topology;
    plain.beta1 = options.lamb.beta1;
    plain.epsilon = options.lamb.epsilon;
    exchange.emplace(lamb.layout, static_cast<int>(lamb.ranks), plain, lamb.parameters);
    exchange->momentum = lamb.momentum;
    // What the last step divided by.
    if (options.lamb.bias_correction)
      for (const Segment& segment : segments())
        if (segment.compress)
          for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
            lamb.variance[at(k)] /= 1 - std::pow(options.lamb.beta2, static_cast<Real>(options.freeze));
    exchange->variance = lamb.variance;
    exchange->freeze();  // masks what has no variance
    for (const Segment& segment : segments())
      if (segment.compress)
        for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
          lamb.momentum[at(k)] = exchange->momentum[at(k)];
    fresh = lamb.variance;

    std::vector<Real> r(frozen.size());
    Real sum = 0, count = 0;
    for (std::size_t s = 0; s < r.size(); ++s) {
      const Segment& segment = segments()[s];
      if (!segment.compress || segment.count == 0) continue;
      r[s] = norm_of(segment, lamb.momentum) / std::sqrt(static_cast<Real>(segment.count));
      sum += r[s];
      count += r[s] > 0 ? Real{1} : Real{0};
    }
    for (std::size_t s = 0; s < r.size(); ++s) {
      scales[s] = r[s] > 0 ? std::min(sum / count / r[s], Real(1 << 24)) : Real{1};
      const Segment& segment = segments()[s];
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k)
        exchange->momentum[at(k)] *= scales[s];
    }
  }

  void compressed_step(std::vector<Arena<Real>> g, Real learning_rate) {
    ++lamb.steps;
    Real sum = 0;
    for (const Arena<Real>& one : g) sum += squared_norm(lamb.layout, one);
    const Real shrink = clip_factor(options.lamb.clip_norm, std::sqrt(sum / static_cast<Real>(lamb.ranks)));
    for (Arena<Real>& one : g)
      for (Real& value : one) value *= shrink;
    const Arena<Real> mean = mean_of(g);
    for (std::size_t s = 0; s < frozen.size(); ++s)
      for (index_t k = segments()[s].offset; k < segments()[s].offset + segments()[s].count; ++k)
        for (Arena<Real>& one : g) one[at(k)] *= scales[s];
    exchange->step(g, 0);
    for (std::size_t s = 0; s < frozen.size(); ++s) {
      if (segments()[s].compress)
        compressed_segment(s, learning_rate);
      else
        lamb.step_of(s, mean, learning_rate);
    }
  }

  void compressed_segment(std::size_t s, Real learning_rate) {
    const Segment& segment = segments()[s];
    if (segment.count == 0) return;
    const Real beta1 = options.lamb.beta1, beta2 = options.lamb.beta2, epsilon = options.lamb.epsilon;
    const Real decay = options.lamb.weight_decay * static_cast<Real>(segment.weight_decay);
    Arena<Real> plain(fresh.size()), u(fresh.size());
    Real f = 0;
    for (index_t j = segment.offset; j < segment.offset + segment.count; ++j) {
      const std::size_t k = at(j);
      const bool live = exchange->live[k] != 0;
      const Real before = lamb.momentum[k], m = exchange->momentum[k] / scales[s];
      const Real g = (m - beta1 * before) / (1 - beta1);
      lamb.momentum[k] = m;
      fresh[k] = beta2 * fresh[k] + (1 - beta2) * g * g;
      const Real root = std::sqrt(lamb.variance[k]) + epsilon;
      plain[k] = live ? std::clamp(m / root, -options.update_clip, options.update_clip) : Real{0};
      u[k] = plain[k] + decay * lamb.parameters[k];
      if (live) f = std::max(f, root / (std::sqrt(fresh[k]) + epsilon));
    }
    if (decay > 0 && norm_of(segment, u) > 0) {
      const Real q = std::min(Real{1}, norm_of(segment, plain) / norm_of(segment, u));
      f = f * q + (1 - q);
    }
    const Real inside = std::clamp(f, options.min_factor, options.max_factor);
    const Real last = factors[s], held = std::clamp(inside, last * (1 - options.factor_threshold),
                                                    last * (1 + options.factor_threshold));
    ++(held != inside ? limited : inside != f ? bounded : free);
    factors[s] = held;
    lamb.move(segment, u, learning_rate * (frozen[s] > 0 ? frozen[s] : Real{1}) * held);
  }
};

}  // namespace terse::reference
