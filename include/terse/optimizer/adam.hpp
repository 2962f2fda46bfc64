// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/adam.hpp"

namespace terse {

/// Adam on the exact mean gradient, with decoupled weight decay (AdamW).
///
/// Cost: one pass over n to send, one over n / W on a chunk's owner, one over n to update. Sends 2 (W - 1) /
/// W * 4 n bytes and 32 per message. State: 2 n floats. Source: Kingma and Ba, ICLR 2015; Loshchilov and
/// Hutter, ICLR 2019.
struct Adam {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;  ///< outside the root
  float weight_decay = 0;
  bool bias_correction = true;

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_epsilon(epsilon);
    detail::check_rate("weight_decay", weight_decay);
    detail::check_beta("beta1", beta1);
    detail::check_beta("beta2", beta2);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("beta1", static_cast<double>(beta1));
    visit("beta2", static_cast<double>(beta2));
    visit("epsilon", static_cast<double>(epsilon));
    visit("weight_decay", static_cast<double>(weight_decay));
    visit("bias_correction", bias_correction ? 1.0 : 0.0);
  }

  template <Transport T, Executor E>
  struct State {
    DenseExchange<ScatterGather, T, E> exchange;
    Rates<E> rates;
    buffer<float, typename E::memory> momentum, variance;

    State(const Adam&, E executor, T& transport, const Layout& layout, bool clips)
        : exchange(executor, transport, layout, layout.range(), Dense{}, None{}, clips),
          rates(layout),
          momentum(layout.size()),
          variance(layout.size()) {}
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
    average_gradients(
        state.exchange, input,
        AdamUpdate<typename N::parameter>{state.momentum.data(), state.variance.data(), input.parameters,
                                          state.rates.table(), input.context.now, beta1, beta2, epsilon});
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    state.exchange.settle(input.context);
  }
};

}  // namespace terse
