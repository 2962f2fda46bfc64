// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "terse/core/layout.hpp"

// Oracles of the uncompressed recipes: plain loops over the published formulas, all ranks in one thread. They
// share nothing with the library but `Layout`.

namespace terse::reference {

/// One value for each element of the arena; padding stays as it was given.
template <class Real>
using Arena = std::vector<Real>;

inline std::size_t at(index_t index) { return static_cast<std::size_t>(index); }

/// Calls body(segment, k) for each arena index k of each segment, padding left out.
template <class Body>
void for_each_element(const Layout& layout, const Body& body) {
  for (const Segment& segment : layout.segments())
    for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) body(segment, at(k));
}

/// The gradients of all ranks in `Real`. Throws std::invalid_argument when a rank or an element is missing.
template <class Real, class Gradients>
std::vector<Arena<Real>> read_gradients(const Layout& layout, std::size_t ranks, const Gradients& given) {
  if (static_cast<std::size_t>(given.size()) != ranks)
    throw std::invalid_argument("the oracle needs one gradient for each rank");
  std::vector<Arena<Real>> gradients;
  for (const auto& one : given) {
    if (static_cast<std::size_t>(one.size()) < at(layout.size()))
      throw std::invalid_argument("a gradient is shorter than the arena");
    Arena<Real> copy(at(layout.size()));
    for_each_element(layout, [&](const Segment&, std::size_t k) { copy[k] = static_cast<Real>(one[k]); });
    gradients.push_back(std::move(copy));
  }
  return gradients;
}

template <class Real>
Arena<Real> mean_of(const std::vector<Arena<Real>>& values) {
  Arena<Real> mean(values.front().size());
  for (std::size_t k = 0; k < mean.size(); ++k) {
    Real sum = 0;
    for (const Arena<Real>& one : values) sum += one[k];
    mean[k] = sum / static_cast<Real>(values.size());
  }
  return mean;
}

/// The square of the 2-norm over all segments.
template <class Real>
Real squared_norm(const Layout& layout, const Arena<Real>& values) {
  Real sum = 0;
  for_each_element(layout, [&](const Segment&, std::size_t k) { sum += values[k] * values[k]; });
  return sum;
}

/// min(1, clip_norm / norm), which is 1 for a norm of 0 and for an infinite `clip_norm`.
template <class Real>
Real clip_factor(Real clip_norm, Real norm) {
  return norm > clip_norm ? clip_norm / norm : Real{1};
}

/// The averaged gradient, clipped to `clip_norm`.
template <class Real, class Gradients>
Arena<Real> clipped_mean(const Layout& layout, std::size_t ranks, const Gradients& given, Real clip_norm) {
  Arena<Real> gradient = mean_of(read_gradients<Real>(layout, ranks, given));
  const Real factor = clip_factor(clip_norm, std::sqrt(squared_norm(layout, gradient)));
  for (Real& value : gradient) value *= factor;
  return gradient;
}

/// x -= rate * (direction + decay * x) with the segment's two factors.
template <class Real>
void descend(const Segment& segment, Real learning_rate, Real weight_decay, Real direction, Real& parameter) {
  const Real rate = learning_rate * static_cast<Real>(segment.learning_rate_scale);
  const Real decay = weight_decay * static_cast<Real>(segment.weight_decay);
  parameter -= rate * (direction + decay * parameter);
}

/// SGD with momentum: m = mu m + g; u = m, or g + mu m with Nesterov's; x -= lr (u + wd x).
template <class Real = double>
struct MomentumSgd {
  struct Options {
    Real momentum = Real(0.9);
    Real weight_decay = 0;
    bool nesterov = false;
    Real clip_norm = std::numeric_limits<Real>::infinity();  ///< of the averaged gradient
  };

  Layout layout;
  std::size_t ranks;
  Options options;
  Arena<Real> parameters;
  Arena<Real> momentum;

  template <class Values>
  MomentumSgd(Layout layout_, int ranks_, Options options_, const Values& start)
      : layout(std::move(layout_)),
        ranks(at(ranks_)),
        options(options_),
        parameters(start.begin(), start.end()),
        momentum(at(layout.size())) {
    if (parameters.size() != at(layout.size()))
      throw std::invalid_argument("the parameters must fill the arena");
  }

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, Real learning_rate) {
    const Arena<Real> g = clipped_mean(layout, ranks, gradients, options.clip_norm);
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      momentum[k] = options.momentum * momentum[k] + g[k];
      const Real direction = options.nesterov ? g[k] + options.momentum * momentum[k] : momentum[k];
      descend(segment, learning_rate, options.weight_decay, direction, parameters[k]);
    });
  }
};

/// Adam with decoupled weight decay, epsilon outside the root: x -= lr (m / (sqrt(v) + eps) + wd x), with m
/// and v divided by 1 - beta^t first where `bias_correction` is set.
template <class Real = double>
struct Adam {
  struct Options {
    Real beta1 = Real(0.9);
    Real beta2 = Real(0.999);
    Real epsilon = Real(1e-8);
    Real weight_decay = 0;
    bool bias_correction = true;
    Real clip_norm = std::numeric_limits<Real>::infinity();  ///< of the averaged gradient
  };

  Layout layout;
  std::size_t ranks;
  Options options;
  Arena<Real> parameters;
  Arena<Real> momentum;
  Arena<Real> variance;
  index_t steps = 0;

  template <class Values>
  Adam(Layout layout_, int ranks_, Options options_, const Values& start)
      : layout(std::move(layout_)),
        ranks(at(ranks_)),
        options(options_),
        parameters(start.begin(), start.end()),
        momentum(at(layout.size())),
        variance(at(layout.size())) {
    if (parameters.size() != at(layout.size()))
      throw std::invalid_argument("the parameters must fill the arena");
  }

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, Real learning_rate) {
    ++steps;
    const Arena<Real> g = clipped_mean(layout, ranks, gradients, options.clip_norm);
    const Real t = static_cast<Real>(steps);
    const Real unbias1 = options.bias_correction ? 1 - std::pow(options.beta1, t) : Real{1};
    const Real unbias2 = options.bias_correction ? 1 - std::pow(options.beta2, t) : Real{1};
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      momentum[k] = options.beta1 * momentum[k] + (1 - options.beta1) * g[k];
      variance[k] = options.beta2 * variance[k] + (1 - options.beta2) * g[k] * g[k];
      const Real direction = momentum[k] / unbias1 / (std::sqrt(variance[k] / unbias2) + options.epsilon);
      descend(segment, learning_rate, options.weight_decay, direction, parameters[k]);
    });
  }
};

/// PmSGD + LARS: r = eta |x| / (|g| + wd |x| + eps) for each segment of two dimensions or more whose norms are not 0, else
/// 1; m = mu m + lr r (g + wd x); x -= m, or mu m + lr r (g + wd x) with Nesterov's.
template <class Real = double>
struct Lars {
  struct Options {
    Real momentum = Real(0.9);
    Real weight_decay = 0;
    Real trust = Real(1e-3);
    Real epsilon = Real(1e-9);
    bool nesterov = false;
    Real clip_norm = std::numeric_limits<Real>::infinity();
  };

  Layout layout;
  std::size_t ranks;
  Options options;
  Arena<Real> parameters;
  Arena<Real> momentum;

  template <class Values>
  Lars(Layout layout_, int ranks_, Options options_, const Values& start)
      : layout(std::move(layout_)),
        ranks(at(ranks_)),
        options(options_),
        parameters(start.begin(), start.end()),
        momentum(at(layout.size())) {}

  template <class Gradients>
  void step(const Gradients& gradients, Real learning_rate) {
    const Arena<Real> g = clipped_mean<Real>(layout, ranks, gradients, options.clip_norm);
    for (const Segment& segment : layout.segments()) {
      const Real decay = options.weight_decay * static_cast<Real>(segment.weight_decay);
      Real rate = learning_rate * static_cast<Real>(segment.learning_rate_scale);
      Real xx = 0, gg = 0;
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) {
        xx += parameters[at(k)] * parameters[at(k)];
        gg += g[at(k)] * g[at(k)];
      }
      if (segment.shape.size() >= 2 && xx > 0 && gg > 0)
        rate *= options.trust * std::sqrt(xx) / (std::sqrt(gg) + decay * std::sqrt(xx) + options.epsilon);
      for (index_t k = segment.offset; k < segment.offset + segment.count; ++k) {
        const Real push = rate * (g[at(k)] + decay * parameters[at(k)]);
        momentum[at(k)] = options.momentum * momentum[at(k)] + push;
        parameters[at(k)] -= options.nesterov ? options.momentum * momentum[at(k)] + push : momentum[at(k)];
      }
    }
  }
};

}  // namespace terse::reference
