// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/codec.hpp"
#include "terse/momentum_correction/averaged.hpp"
#include "terse/optimizer/averaging_functors.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/elementwise.hpp"
#include "terse/preconditioner/frozen_variance.hpp"

// The functors that optimizers hand to the exchange, for benchmarks of single passes.

namespace terse::bench {

/// Rules over two buffers, each policy's own, with one scalar each.
template <class M, class P>
using PairOfRules = detail::Rules<typename M::template Rule<float>, typename P::template Rule<float>,
                                  detail::AveragingView<Numbers<>, 2, 2, 0>, detail::Places<0, 0>,
                                  detail::Places<1, 1>, false>;

template <class M, class P>
PairOfRules<M, P> rules_of(const M& correction, const P& preconditioner, float* x, const float* g, float* m,
                           float* v, const Rate* rates, const StepScalars* now) {
  return {rule_of<float>(correction), rule_of<float>(preconditioner), {{x}, g, {m, v}, {}, rates, now}};
}

/// 1-bit Adam's message and update after the freeze, and Adam's update.
using OneBitRules = PairOfRules<LocalAverage, FrozenVariance>;
using OneBitMessage = Message<detail::Say<OneBitRules>, ScaledGradient<>>;
using OneBitUpdate = detail::Descend<OneBitRules, false>;
using AdamRules = PairOfRules<ExponentialAverage, AdamVariance>;
using AdamUpdate = detail::Descend<AdamRules, true>;

}  // namespace terse::bench
