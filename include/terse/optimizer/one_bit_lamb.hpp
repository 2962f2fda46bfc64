// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sign.hpp"
#include "terse/optimizer/one_bit_lamb_state.hpp"
#include "terse/optimizer/sorted.hpp"
#include "terse/topology/ring.hpp"

namespace terse {

/// 1-bit LAMB: LAMB until the variance is frozen; then compressed momentum over the frozen variance, with layer-wise
/// coefficients that are frozen, too, but follow a fresh variance slowly.
///
///     before the freeze: Lamb, and for each segment, where c != 1,
///       frozen = coefficient_beta frozen + (1 - coefficient_beta) c
///     at the freeze:     s = mean over segments of (||m|| / sqrt(n)) / (||m|| / sqrt(n)), v~ = v
///     after it, d = 1 / (sqrt(v) + epsilon):
///       m_i = (beta1 m + (1 - beta1) g_i) s        m' = mean_i of compressed (m_i + e_i), by the topology, / s
///       g~ = (m' - beta1 m) / (1 - beta1)          v~ = beta2 v~ + (1 - beta2) g~^2        m = m'
///       u0 = clamp(m d, -update_clip, update_clip), u = u0 + weight_decay x
///       f = max over the segment of 1 / (d (sqrt(v~) + epsilon))
///       with weight decay f = f q + 1 - q, q = min(1, ||u0|| / ||u||)
///       f = clamp(f, min_factor, max_factor), and within factor_threshold of the last f
///       x = x - learning_rate frozen f u
///
/// All segments travel in one message, which s makes of one size. Segments with `compress == false` go on with LAMB.
/// A segment whose momentum is 0 at the freeze has s = 1, and s is at most 2^24; one whose c was never other than 1
/// has frozen = 1.
///
/// State: momentum, variance, fresh variance and error of n floats each, the second error, four floats a segment.
/// Passes of a compressed step over n: OneBitAdam's, three or four that read, and the update. Wire: as OneBitAdam.
/// Source: Li et al., "1-bit LAMB: communication efficient large-scale large-batch training with LAMB's convergence
/// speed", HiPC 2022 (arXiv 2104.06069), algorithm 1; `update_clip` is ours, see FrozenVariance.
template <class C, class F, class G, class P>
struct OneBitLambOf {
  static_assert(check_means<C, F, G>());
  static_assert(
      requires(const P& policy) {
        Freeze{policy.freeze};
        policy.update_clip;
      },
      "terse: 1-bit LAMB's preconditioner is FrozenVariance, or has its `freeze` and `update_clip`");
  static_assert(
      !detail::starts_exactly<F>(),
      "terse: the copies of Difference start anew from exact gradients after a step that failed, which "
      "this method's second stage has none of. Use Residual");

  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;  ///< outside the root
  float weight_decay = 0;
  float min_coefficient = 0.01F;
  float max_coefficient = 10;
  float coefficient_beta = 0.9F;
  float min_factor = 0.5F;
  float max_factor = 4;
  float factor_threshold = 0.1F;
  P preconditioner{};
  C compressor{};
  F error_feedback{};
  G topology{};

  void check() const {
    check_rate("learning_rate", learning_rate);
    check_epsilon(epsilon);
    check_rate("weight_decay", weight_decay);
    check_beta("beta1", beta1);
    check_beta("beta2", beta2);
    check_beta("coefficient_beta", coefficient_beta);
    check_beta("factor_threshold", factor_threshold);
    require(min_coefficient > 0 && min_coefficient <= max_coefficient,
            "min_coefficient must be positive and at most max_coefficient",
            static_cast<double>(min_coefficient));
    require(min_factor > 0 && min_factor <= 1 && max_factor >= 1,
            "min_factor must be in (0, 1] and max_factor at least 1", static_cast<double>(min_factor));
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
    visit("min_coefficient", static_cast<double>(min_coefficient));
    visit("max_coefficient", static_cast<double>(max_coefficient));
    visit("coefficient_beta", static_cast<double>(coefficient_beta));
    visit("min_factor", static_cast<double>(min_factor));
    visit("max_factor", static_cast<double>(max_factor));
    visit("factor_threshold", static_cast<double>(factor_threshold));
    preconditioner.settings(visit);
    detail::policy_settings(compressor, visit);
    detail::policy_settings(error_feedback, visit);
    detail::policy_settings(topology, visit);
  }

  template <Transport T, Executor E>
  using State = detail::OneBitLambState<C, G, F, P, T, E>;

  template <Transport T, Executor E, class N>
  void prepare(const StepInput<E, N>& input, State<T, E>& state, StepScalars&) const {
    state.rates.set(input.executor, input.layout, learning_rate, weight_decay);
    state.compressed.set_compressor(compressor);
    state.freezing.check({preconditioner.freeze});
    if (state.freezing.frozen() && state.balanced == 0) state.balance(input.executor, epsilon);
  }
  template <Transport T, Executor E, class N>
  void enqueue(const StepInput<E, N>& input, State<T, E>& state) const {
    float *const m = state.momentum.data(), *const v = state.variance.data();
    const auto x = input.parameters;
    const E executor = input.executor;
    const StepScalars* now = input.context.now;
    const bool frozen = state.freezing.frozen();
    const detail::LambDirection live{m, v, x.values, state.rates.table(), epsilon};
    const detail::AdamMoments moments{m, v, beta1, beta2};
    const detail::TrustRatio trust{state.weights.table(), state.updates.table(), state.coefficients.data(),
                                   min_coefficient, max_coefficient};
    const auto direction = [&](bool decays) {
      return detail::FrozenDirection{live, v, preconditioner.update_clip, state.excluded.data(), decays};
    };
    using Direction = detail::FrozenDirection;
    using Descend = detail::DescendByLayer<typename N::parameter, detail::LambDirection>;
    using FrozenDescend = detail::DescendByLayer<typename N::parameter, Direction>;

    if (!frozen) {
      average_gradients(state.full, input, moments);
      state.weights.measure(executor, detail::Stored{x.values});
      state.updates.measure(executor, live);
      for_each(executor, state.segments, Mask<typename E::memory>{}, NoPackets{},
               state.full.gated(detail::LearnCoefficient{trust, state.layers(), coefficient_beta}));
      for_each(executor, state.all, Mask<typename E::memory>{}, NoPackets{},
               state.full.gated(Descend{x, live, state.rates.table(), state.coefficients.data()}));
      return;
    }
    using Gradient = typename N::gradient;
    state.compressed.mix(
        input.context, state.freezing.mask(),
        Message{detail::ScaledMomentum<Gradient>{{m, input.gradients, now, beta1}, state.scales.data()},
                ScaledGradient{input.gradients, now}},
        Message{detail::RefreshVariance{m, state.fresh.data(), state.scales.data(), beta1, beta2}, moments});
    state.weights.measure(executor, detail::Stored{x.values});
    state.updates.measure(executor, direction(true));
    if (weight_decay > 0) state.plain.measure(executor, direction(false));
    state.ratios.measure(executor, detail::RootRatio{v, state.fresh.data(), epsilon});
    for_each(executor, state.segments, Mask<typename E::memory>{}, NoPackets{},
             state.compressed.gated(detail::FreshFactor{trust, state.ratios.table(), state.plain.table(),
                                                        state.layers(), state.rates.table(), min_factor,
                                                        max_factor, factor_threshold}));
    for_each(executor, state.all, Mask<typename E::memory>{}, NoPackets{},
             state.compressed.gated(
                 FrozenDescend{x, direction(true), state.rates.table(), state.coefficients.data()}));
  }
  template <Transport T, Executor E, class N>
  void complete(const StepInput<E, N>& input, State<T, E>& state) const {
    if (state.freezing.frozen()) {
      state.compressed.settle(input.context);
    } else {
      state.full.settle(input.context);
      state.freezing.observe(input.executor, {preconditioner.freeze}, input.context.step, epsilon,
                             state.variance.data(), state.momentum.data());
    }
  }
};

/// OneBitLambOf with a Compressor (Sign), an ErrorFeedback (Residual), a Topology (ScatterGather) and a Preconditioner with a
/// `freeze` (FrozenVariance), in any order.
template <class... Ps>
using OneBitLamb = Sorted<OneBitLambOf,
                          Takes<PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology,
                                PolicyKind::preconditioner>,
                          Policies<Sign, Residual, FrozenVariance>, Ps...>;

}  // namespace terse
