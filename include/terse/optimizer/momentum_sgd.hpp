// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/recipe.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// m = momentum m + g, u = nesterov ? g + momentum m : m, x = x - learning_rate (u + weight_decay x).
struct MomentumUpdate {
  float* momentum;
  float* parameters;
  const Rate* rates;
  float beta;
  float ahead;  ///< 1 for Nesterov, 0 for heavy ball
  float gradient_factor = 1;
  Rate rate{};

  TERSE_HD void enter(const Piece& piece) { rate = rates[piece.segment]; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float g = mean * gradient_factor;
    const float m = beta * momentum[i] + g;
    momentum[i] = m;
    const float direction = ahead != 0 ? g + beta * m : m;
    const float x = parameters[i];
    parameters[i] = x - rate.learning_rate * (direction + rate.weight_decay * x);
  }
};

TERSE_NUMERICS_END

/// Parallel momentum SGD (PmSGD): heavy ball or Nesterov on the exact mean gradient, with decoupled weight
/// decay.
///
/// Cost: as Adam's. State: n floats. Source: Polyak 1964; Sutskever et al., ICML 2013, in the form without
/// dampening.
struct MomentumSgd {
  float learning_rate = 0.1F;
  float momentum = 0.9F;
  float weight_decay = 0;
  bool nesterov = false;

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_rate("weight_decay", weight_decay);
    detail::check_beta("momentum", momentum);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("momentum", static_cast<double>(momentum));
    visit("weight_decay", static_cast<double>(weight_decay));
    visit("nesterov", nesterov ? 1.0 : 0.0);
  }

  template <Transport T, Executor E>
  struct State {
    DenseExchange<ScatterGather, T, E> exchange;
    Rates<E> rates;
    buffer<float, typename E::memory> momentum;

    State(const MomentumSgd&, E executor, T& transport, const Layout& layout, bool clips)
        : exchange(executor, transport, layout, layout.range(), Dense{}, clips),
          rates(layout),
          momentum(layout.size()) {}
    bool full_precision() const { return true; }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("momentum", momentum.all(), index_t{0});
    }
  };

  template <Transport T, Executor E>
  void step(const StepInput<E>& input, State<T, E>& state) const {
    average_gradients(state.exchange, input,
                      MomentumUpdate{state.momentum.data(), input.parameters.data(),
                                     state.rates.set(input.layout, learning_rate, weight_decay), momentum,
                                     nesterov ? 1.0F : 0.0F});
  }
};

}  // namespace terse
