// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "dense.hpp"
#include "one_bit_adam.hpp"
#include "terse/core/layout.hpp"

// Oracle of 0/1 Adam: all ranks in one thread, written from the formulas.

namespace terse::reference {

/// The exchange is 1-bit Adam's: with beta1 = 0 its messages are what it is given, its momentum becomes their mean.
template <class Real = double>
struct ZeroOneAdam {
  struct Options {
    Real beta1 = Real(0.9);
    Real beta2 = Real(0.999);
    Real epsilon = Real(1e-8);
    Real weight_decay = 0;
    Real update_clip = std::numeric_limits<Real>::infinity();
    Real clip_norm = std::numeric_limits<Real>::infinity();
    index_t freeze = 1;            ///< the last step of the first stage
    index_t variance_updates = 1;  ///< at each interval
    index_t local_interval_steps = 1;
    index_t most_local_steps = 1;
    bool lossless = false;
  };

  Layout layout;
  std::size_t ranks;
  Options options;
  OneBitAdam<Real> exchange;
  std::vector<Arena<Real>> parameters, momentum;  ///< [rank]
  Arena<Real> variance;
  std::vector<Arena<Real>>
      moves;  ///< sum of rate times momentum since the last meeting, decayed as parameters are
  Arena<Real> anchor, rate_sum;  ///< by element; of the anchor what decay has left
  index_t steps = 0;
  bool exact = false, met = false;  ///< what the last step was
  index_t bounded = 0, still = 0;   ///< directions that the clip held; elements without variance
  Real gap = 0;                     ///< largest | mean over ranks of x_i - x | of all meetings

  template <class Values>
  ZeroOneAdam(const Layout& layout_, int ranks_, Options options_, const Values& start)
      : layout(layout_),
        ranks(at(ranks_)),
        options(options_),
        exchange(layout_, ranks_, only_messages(), start),
        parameters(ranks, Arena<Real>(start.begin(), start.end())),
        momentum(ranks, Arena<Real>(at(layout.size()))),
        variance(at(layout.size())),
        moves(momentum),
        anchor(at(layout.size())),
        rate_sum(at(layout.size())) {
    exchange.frozen = true;
  }

  /// `gradients[rank][k]`; `learning_rate` is this step's.
  template <class Gradients>
  void step(const Gradients& gradients, Real learning_rate) {
    ++steps;
    exact = met = false;
    std::vector<Arena<Real>> g = read_gradients<Real>(layout, ranks, gradients);
    if (steps <= options.freeze) {
      exact = ends_interval(updates, options.variance_updates, std::numeric_limits<index_t>::max());
      together(std::move(g), learning_rate);
      if (steps == options.freeze) freeze();
      return;
    }
    met = ends_interval(steps - options.freeze - 1, options.local_interval_steps, options.most_local_steps);
    shrink(g);
    for (std::size_t rank = 0; rank < ranks; ++rank) alone(rank, g[rank], learning_rate);
    if (met) meet();
  }

  /// d, 0 where there is no variance.
  Arena<Real> inverse() const {
    Arena<Real> d(variance.size());
    for (std::size_t k = 0; k < d.size(); ++k)
      if (variance[k] > 0) d[k] = 1 / (std::sqrt(variance[k]) + options.epsilon);
    return d;
  }

 private:
  index_t updates = 0, last_end = 0;  // of the variance; the step that ended the last interval

  static typename OneBitAdam<Real>::Options only_messages() {
    typename OneBitAdam<Real>::Options options;
    options.beta1 = 0;
    return options;
  }

  /// Whether this step is as far from the last one as the interval says, 2^(count / each).
  bool ends_interval(index_t count, index_t each, index_t most) {
    index_t interval = 1;
    for (index_t k = each; k <= count; k += each) interval = std::min(2 * interval, most);
    if (steps - last_end < interval) return false;
    last_end = steps;
    return true;
  }

  void shrink(std::vector<Arena<Real>>& g) const {
    Real sum = 0;
    for (const Arena<Real>& one : g) sum += squared_norm(layout, one);
    const Real factor = clip_factor(options.clip_norm, std::sqrt(sum / static_cast<Real>(ranks)));
    for (Arena<Real>& one : g)
      for (Real& value : one) value *= factor;
  }

  /// The mean of what arrives.
  Arena<Real> exchanged(const std::vector<Arena<Real>>& messages) {
    if (options.lossless) return mean_of(messages);
    exchange.step(messages, 0);
    return exchange.momentum;
  }

  Real clamped(Real direction) {
    if (std::abs(direction) > options.update_clip) ++bounded;
    return std::clamp(direction, -options.update_clip, options.update_clip);
  }

  void together(std::vector<Arena<Real>> g, Real learning_rate) {
    Arena<Real> mean;
    if (exact) {
      ++updates;
      mean = clipped_mean(layout, ranks, g, options.clip_norm);
    } else {
      shrink(g);
      mean = exchanged(g);
    }
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      if (exact) variance[k] = options.beta2 * variance[k] + (1 - options.beta2) * mean[k] * mean[k];
      Real direction = 0, m = 0;
      if (variance[k] > 0) {
        m = options.beta1 * momentum[0][k] + (1 - options.beta1) * mean[k];
        direction = clamped(m / (std::sqrt(variance[k]) + options.epsilon));
      } else {
        ++still;
      }
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        momentum[rank][k] = m;
        descend(segment, learning_rate, options.weight_decay, direction, parameters[rank][k]);
      }
    });
  }

  void freeze() {
    last_end = steps;
    anchor = parameters[0];
    for (Arena<Real>& error : exchange.residuals) std::fill(error.begin(), error.end(), Real{0});
    for (Arena<Real>& error : exchange.server_residuals) std::fill(error.begin(), error.end(), Real{0});
    for (std::size_t k = 0; k < variance.size(); ++k) exchange.live[k] = variance[k] > 0 ? 1 : 0;
  }

  Real over_root(std::size_t k, Real m) {
    return variance[k] > 0 ? clamped(m / (std::sqrt(variance[k]) + options.epsilon)) : Real{0};
  }

  void alone(std::size_t rank, const Arena<Real>& g, Real learning_rate) {
    for_each_element(layout, [&](const Segment& segment, std::size_t k) {
      const Real rate = learning_rate * static_cast<Real>(segment.learning_rate_scale);
      const Real decay = rate * options.weight_decay * static_cast<Real>(segment.weight_decay);
      Real& m = momentum[rank][k];
      m = options.beta1 * m + (1 - options.beta1) * g[k];
      descend(segment, learning_rate, options.weight_decay, over_root(k, m), parameters[rank][k]);
      moves[rank][k] -= decay * moves[rank][k];
      moves[rank][k] += rate * m;
      if (rank != 0) return;
      anchor[k] -= decay * anchor[k];
      rate_sum[k] -= decay * rate_sum[k];
      rate_sum[k] += rate;
    });
  }

  void meet() {
    std::vector<Arena<Real>> messages = momentum;
    for_each_element(layout, [&](const Segment&, std::size_t k) {
      for (std::size_t rank = 0; rank < ranks; ++rank)
        if (rate_sum[k] > 0) messages[rank][k] = moves[rank][k] / rate_sum[k];
    });
    const Arena<Real> mean = exchanged(messages), apart = mean_of(parameters);
    for_each_element(layout, [&](const Segment&, std::size_t k) {
      anchor[k] -= rate_sum[k] * over_root(k, mean[k]);
      gap = std::max(gap, std::abs(anchor[k] - apart[k]));
      rate_sum[k] = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        parameters[rank][k] = anchor[k];
        momentum[rank][k] = mean[k];
        moves[rank][k] = 0;
      }
    });
  }
};

}  // namespace terse::reference
