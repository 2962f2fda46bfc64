// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/adam.hpp"
#include "terse/preconditioner/layer_trust.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

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
  const StepScalars* now;
  float epsilon;
  float first = 1, second = 1, decay = 0;

  TERSE_HD void enter(const Piece& piece) {
    first = now->first;
    second = now->second;
    decay = rates[piece.segment].weight_decay;
  }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    return (first * momentum[i]) / (std::sqrt(second * variance[i]) + epsilon) + decay * parameters[i];
  }
};

/// x = x - learning_rate c u, c the segment's.
template <Number P, class Direction>
struct LayerDescend {
  Weights<P> parameters;
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

}  // namespace detail

TERSE_NUMERICS_END

/// LAMB: Adam with layer-wise rates, on the exact mean gradient g. With m and v as Adam's, for each segment
///
///     u = m / (sqrt(v) + epsilon) + weight_decay x
///     c = clamp(||x|| / ||u||, min_coefficient, max_coefficient)       1 where a norm is 0
///     x = x - learning_rate c u
///
/// State: 2 n floats. Passes beside the average's: two that read for the norms, one for the update. Wire: as Adam.
/// Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020,
/// algorithm 2.
struct Lamb {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;  ///< outside the root
  float weight_decay = 0;
  float min_coefficient = 0.01F;
  float max_coefficient = 10;
  bool bias_correction = true;

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_epsilon(epsilon);
    detail::check_rate("weight_decay", weight_decay);
    detail::check_beta("beta1", beta1);
    detail::check_beta("beta2", beta2);
    detail::require(min_coefficient > 0 && min_coefficient <= max_coefficient,
                    "min_coefficient must be positive and at most max_coefficient",
                    static_cast<double>(min_coefficient));
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("beta1", static_cast<double>(beta1));
    visit("beta2", static_cast<double>(beta2));
    visit("epsilon", static_cast<double>(epsilon));
    visit("weight_decay", static_cast<double>(weight_decay));
    visit("min_coefficient", static_cast<double>(min_coefficient));
    visit("max_coefficient", static_cast<double>(max_coefficient));
    visit("bias_correction", bias_correction ? 1.0 : 0.0);
  }

  template <Transport T, Executor E>
  struct State {
    DenseExchange<ScatterGather, T, E> exchange;
    Rates<E> rates;
    LayerStatistic<E> weights, updates;
    buffer<float, typename E::memory> momentum, variance, coefficients;
    Range all, segments;  // made here, for a step allocates nothing

    State(const Lamb&, E executor, T& transport, const Layout& layout, bool clips)
        : exchange(executor, transport, layout, layout.range(), Dense{}, None{}, clips),
          rates(layout),
          weights(executor, layout, 0),
          updates(executor, layout, 0),
          momentum(layout.size()),
          variance(layout.size()),
          coefficients(static_cast<index_t>(layout.segments().size())),
          all(layout.range()),
          segments(Layout::flat(coefficients.size()).range()) {}
    bool full_precision() const { return true; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("momentum", momentum.all(), index_t{0});
      visit("variance", variance.all(), index_t{0});
    }
  };

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars& now) const {
    state.rates.set(input.executor, input.layout, learning_rate, weight_decay);
    if (!bias_correction) return;
    const auto t = static_cast<double>(input.context.step);
    now.first = static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta1), t)));
    now.second = static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta2), t)));
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    float *const m = state.momentum.data(), *const v = state.variance.data();
    const auto x = input.parameters;
    average_gradients(state.exchange, input, detail::AdamMoments{m, v, beta1, beta2});
    const detail::LambDirection direction{m, v, x.values, state.rates.table(), input.context.now, epsilon};
    state.weights.measure(input.executor, detail::Stored{x.values});
    state.updates.measure(input.executor, direction);
    for_each(input.executor, state.segments,
             detail::TrustRatio{state.weights.table(), state.updates.table(), state.coefficients.data(),
                                min_coefficient, max_coefficient});
    using Descend = detail::LayerDescend<typename N::parameter, detail::LambDirection>;
    for_each(input.executor, state.all, Mask<typename E::memory>{}, NoPackets{},
             state.exchange.gated(Descend{x, direction, state.rates.table(), state.coefficients.data()}));
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    state.exchange.settle(input.context);
  }
};

}  // namespace terse
