// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/layer_trust.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The mean into memory of its own.
struct KeepMean {
  float* mean;
  float gradient_factor = 1;
  TERSE_HD void operator()(const Piece&, index_t i, float value) const { mean[i] = value * gradient_factor; }
};

template <Number P>
struct LarsUpdate {
  Weights<P> parameters;
  const float* mean;
  float* velocity;
  const Rate* rates;
  LayerTable weights, gradients;
  float momentum, trust, epsilon;
  bool nesterov;
  Rate rate{};

  TERSE_HD void enter(const Piece& piece) {
    rate = rates[piece.segment];
    if (!weights.has(piece.segment)) return;
    const float w = weights[piece.segment], g = gradients[piece.segment];
    if (w > 0 && g > 0) rate.learning_rate *= trust * w / (g + rate.weight_decay * w + epsilon);
  }
  TERSE_HD void operator()(const Piece&, index_t i, bool) const {
    const float x = parameters[i];
    const float step = rate.learning_rate * (mean[i] + rate.weight_decay * x);
    const float v = momentum * velocity[i] + step;
    velocity[i] = v;
    parameters.set(i, x - (nesterov ? momentum * v + step : v));
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// Parallel momentum SGD with layer-wise rates (PmSGD + LARS), on the exact mean gradient g. For each segment
///
///     r = trust ||x|| / (||g|| + weight_decay ||x|| + epsilon)        1 where a norm is 0, and in one dimension
///     v = momentum v + learning_rate r (g + weight_decay x)
///     x = x - v, or with Nesterov x - (momentum v + learning_rate r (g + weight_decay x))
///
/// State: velocity, and n floats for the mean. Passes beside the average's: two that read for the norms, one for the
/// update. Wire: as MomentumSgd. Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks",
/// 2017, algorithm 1.
struct Lars {
  float learning_rate = 1;
  float momentum = 0.9F;
  bool nesterov = false;
  float weight_decay = 0;  ///< coupled: part of the gradient
  float trust = 1e-3F;     ///< the paper's eta
  float epsilon = 1e-9F;
  /// Biases and the parameters of normalizations go without layer-wise rates.
  static constexpr std::size_t layered_dimensions = 2;

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_rate("weight_decay", weight_decay);
    detail::check_rate("trust", trust);
    detail::check_rate("epsilon", epsilon);
    detail::check_beta("momentum", momentum);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("momentum", static_cast<double>(momentum));
    visit("nesterov", nesterov ? 1.0 : 0.0);
    visit("weight_decay", static_cast<double>(weight_decay));
    visit("trust", static_cast<double>(trust));
    visit("epsilon", static_cast<double>(epsilon));
  }

  template <Transport T, Executor E>
  struct State {
    DenseExchange<ScatterGather, T, E> exchange;
    Rates<E> rates;
    LayerStatistic<E> weights, gradients;
    buffer<float, typename E::memory> velocity, mean;
    Range range;

    State(const Lars&, E executor, T& transport, const Layout& layout, bool clips)
        : exchange(executor, transport, layout, layout.range(), Dense{}, None{}, clips),
          rates(layout),
          weights(executor, layout, layered_dimensions),
          gradients(executor, layout, layered_dimensions),
          velocity(layout.size()),
          mean(layout.size()),
          range(layout.range()) {}
    bool full_precision() const { return true; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("momentum", velocity.all(), index_t{0});
    }
  };

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars&) const {
    state.rates.set(input.executor, input.layout, learning_rate, weight_decay);
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    const float* mean = state.mean.data();
    average_gradients(state.exchange, input, detail::KeepMean{state.mean.data()});
    state.weights.measure(input.executor, detail::Stored{input.parameters.values});
    state.gradients.measure(input.executor, detail::Stored{mean});
    for_each(input.executor, state.range, Mask<typename E::memory>{}, NoPackets{},
             state.exchange.gated(detail::LarsUpdate<typename N::parameter>{
                 input.parameters, mean, state.velocity.data(), state.rates.table(), state.weights.table(),
                 state.gradients.table(), momentum, trust, epsilon, nesterov}));
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    state.exchange.settle(input.context);
  }
};

}  // namespace terse
