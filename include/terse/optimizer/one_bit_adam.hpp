// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/frozen_variance.hpp"
#include "terse/topology/all_gather.hpp"
#include "terse/topology/ring.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

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

TERSE_NUMERICS_END

/// 1-bit Adam: Adam without bias correction until the variance is frozen, then momentum, compressed with
/// error feedback, over the frozen variance.
///
///     before the freeze                  after it, d = 1 / (sqrt(v) + epsilon)
///     g = mean_i g_i                     m_i = beta1 m + (1 - beta1) g_i
///     m = beta1 m + (1 - beta1) g        m = mean_i of compressed (m_i + e_i), by the topology
///     v = beta2 v + (1 - beta2) g^2
///     u = m / (sqrt(v) + epsilon)        u = clamp(m d, -update_clip, update_clip)
///     x = x - learning_rate (u + weight_decay x)
///
/// Segments with `compress == false` go on with the left column, their gradients in the same packets.
///
/// Passes of a compressed step over n: momentum + error + scale, bits + error, decode + update (the first two
/// in one for PerBlock), and two over n / W on a chunk's owner. Wire: see the topology. State: momentum,
/// variance and error of n floats each, n / W more for ScatterGather's second error, n / 64 words of mask;
/// beside it packets of n floats, three times, for the full-precision stage.
///
/// Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
/// Speed", ICML 2021 (arXiv 2102.02888), algorithm 1; `update_clip` is ours, see FrozenVariance.
template <class C = Sign, FreezingPreconditioner P = FrozenVariance, Topology G = ScatterGather,
          ErrorFeedback F = Residual>
struct OneBitAdam {
  static_assert(check_compressor<C>() && check_feedback<C, F>() && check_stages<C, F, G>());

  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;  ///< outside the root
  float weight_decay = 0;
  P preconditioner{};
  C compressor{};
  F error_feedback{};

  void check() const {
    detail::check_rate("learning_rate", learning_rate);
    detail::check_epsilon(epsilon);
    detail::check_rate("weight_decay", weight_decay);
    detail::check_beta("beta1", beta1);
    detail::check_beta("beta2", beta2);
    preconditioner.check();
    detail::check_policy(compressor);
    detail::check_feedback_of_states(error_feedback);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
    visit("beta1", static_cast<double>(beta1));
    visit("beta2", static_cast<double>(beta2));
    visit("epsilon", static_cast<double>(epsilon));
    visit("weight_decay", static_cast<double>(weight_decay));
    preconditioner.settings(visit);
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
  }

  template <Transport T, Executor E>
  struct State {
    DenseExchange<G, T, E> full;
    Exchange<C, F, G, T, E> compressed;
    Rates<E> rates;
    buffer<float, typename E::memory> momentum;
    buffer<float, typename E::memory> variance;  // of compressed segments, after the freeze: d
    typename P::template Freezing<E> freezing;

    State(const OneBitAdam& recipe, E executor, T& transport, const Layout& layout, bool clips)
        : full(executor, transport, layout, layout.range(), Dense{}, None{}, clips),
          compressed(executor, transport, layout, layout.range(), recipe.compressor, recipe.error_feedback),
          rates(layout),
          momentum(layout.size()),
          variance(layout.size()),
          freezing(executor, recipe.preconditioner, compressed.plan().whole.compressed, layout.size()) {}
    bool full_precision() const { return !freezing.frozen(); }
    template <class Visit>
    void walk(Visit&& visit) {
      visit("momentum", momentum.all(), index_t{0});
      visit("variance", variance.all(), index_t{0});
      freezing.walk(visit);
      compressed.walk(visit);
    }
  };

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars&) const {
    state.rates.set(input.executor, input.layout, learning_rate, weight_decay);
    state.compressed.set_compressor(compressor);
    state.freezing.check(preconditioner);
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    float* m = state.momentum.data();
    float* v = state.variance.data();
    const auto x = input.parameters;
    const auto* g = input.gradients;
    using Parameter = typename N::parameter;
    const Rate* rates = state.rates.table();
    const StepScalars* now = input.context.now;
    const AdamUpdate<Parameter> adam{m, v, x, rates, now, beta1, beta2, epsilon};

    if (!state.freezing.frozen())
      average_gradients(state.full, input, adam);
    else
      state.compressed.mix(
          input.context, state.freezing.mask(),
          Message{LocalMomentum<typename N::gradient>{m, g, now, beta1}, ScaledGradient{g, now}},
          Message{FrozenUpdate<Parameter>{m, v, x, rates, preconditioner.update_clip}, adam});
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    if (state.freezing.frozen()) {
      state.compressed.settle(input.context);
    } else {
      state.full.settle(input.context);
      state.freezing.observe(input.executor, preconditioner, input.context.step, epsilon,
                             state.variance.data(), state.momentum.data());
    }
  }
};

}  // namespace terse
