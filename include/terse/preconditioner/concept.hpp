// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "terse/preconditioner/requirements.hpp"

namespace terse {

/// The rule that turns a direction into a step, in methods that average over all ranks. A copyable policy of hyper-parameters with
///
///     static constexpr PreconditionerFacts facts{...};
///     static constexpr std::array<const char*, N> state{...};    names of its buffers, n floats each, which start at 0
///     template <class Real> struct Rule                          the arithmetic for one element; its members are the
///                                                                hyper-parameters, in their order
///
/// and, if it has hyper-parameters, hyper_parameters(), a std::array with a HyperParameter for each. If that is not enough, it has
/// check(), settings(visit) and `template <class Real> Rule<Real> rule() const`. For an element e, see MomentumCorrection, a rule has
///
///     step(e, gradient, direction)   the step u, in x = x - learning_rate (u + weight_decay x); gradient is the mean
///                                    gradient or its estimate, see MomentumCorrection, which made the direction
///     denominator(e)                 optional: the divisor of the last step, 0 for an element without a learned variance
///     carry(e, denominator)          optional, see Staged
///     takes_part(e)                  optional: whether an element is compressed in the second stage, see Staged
///     at_step(t)                     optional: std::array<Real, N>, the values of e.scalar(k) in step t = 1, 2, ...
///
/// carry and takes_part read only buffers; denominator also reads scalars.
///
/// If facts.layer_wise, the first sweep stores u; then statistics of each layer (segment) are measured, and the second sweep
/// takes the step. The policy may have numbers of its own, a float for each layer, which start at 0: `static constexpr
/// std::array<const char*, N> layer_state{...}`. Its rule has `using measures = Statistics<...>` and
///
///     measured(k, e, u)        the value that statistic k = 0, 1, ... of `measures` is taken of
///     factor(layer)            the factor on the learning rate; called once for each layer whose statistics were measured,
///                              in any order; layer.measured(k) is statistic k, layer.decay() the weight decay, layer.rows()
///                              and layer.columns() its shape, and layer[k] number k of layer_state, which it may change
///     observe(layer, factor)   optional, for the second stage's preconditioner: called in each step of the first stage, with
///                              the first stage's statistics and the factor that it has chosen, see Staged
///     move(e, u, rate)         optional: the decrease of x; rate is the learning rate times the layer's factor; by default
///                              rate (u + weight_decay x)
///
/// Arithmetic is a template on Real, so that oracles run the same code in double.
template <class P>
concept Preconditioner = std::copyable<P> && detail::NamesBuffers<P> && requires {
  requires std::same_as<const PreconditionerFacts, decltype(P::facts)>;
  requires detail::PreconditionerRule<P, float> && detail::PreconditionerRule<P, double>;
};

/// Reports a missing member of a preconditioner with a readable static_assert.
template <class P>
constexpr bool check_preconditioner() {
  static_assert(std::copyable<P>, "terse: a preconditioner is a value: it must be copyable");
  static_assert(detail::StatesFacts<P, PreconditionerFacts>,
                "terse: a preconditioner states `static constexpr PreconditionerFacts facts{...}`");
  static_assert(
      detail::NamesBuffers<P>,
      "terse: a preconditioner names its buffers: `static constexpr std::array<const char*, N> state{...}`");
  constexpr bool makes_rule = detail::MakesRule<P, float> && detail::MakesRule<P, double>;
  static_assert(makes_rule,
                "terse: a preconditioner needs `template <class Real> struct Rule`, its arithmetic in float "
                "and, for oracles, in double, whose members are its hyper_parameters() in their order; or "
                "also `template <class Real> Rule<Real> rule() const`");
  if constexpr (makes_rule) {
    using F = typename P::template Rule<float>;
    using D = typename P::template Rule<double>;
    static_assert(detail::Steps<F, float> && detail::Steps<D, double>,
                  "terse: a preconditioner's rule needs `Real step(e, gradient, direction) const`, which the "
                  "learning rate multiplies");
    static_assert(detail::DenominatorFits<F, float> && detail::DenominatorFits<D, double>,
                  "terse: a preconditioner's denominator is `Real denominator(e) const`");
    static_assert(detail::CarryDenominatorFits<F, float> && detail::CarryDenominatorFits<D, double>,
                  "terse: a preconditioner's carry is `void carry(e, Real denominator) const`");
    static_assert(detail::TakesPartFits<F, float> && detail::TakesPartFits<D, double>,
                  "terse: a preconditioner's takes_part is `bool takes_part(e) const`");
    static_assert(
        detail::AtStepFits<F, float> && detail::AtStepFits<D, double>,
        "terse: a preconditioner's at_step is `std::array<Real, N> at_step(std::uint64_t t) const`");
    if constexpr (requires { requires P::facts.layer_wise; }) {
      static_assert(P::facts.orthogonalizes || (detail::NamesStatistics<F> && detail::NamesStatistics<D>),
                    "terse: a layer-wise preconditioner's rule needs `using measures = Statistics<...>`, the "
                    "statistics of a layer");
      static_assert(
          P::facts.orthogonalizes || (detail::MeasuresLayers<F, float> && detail::MeasuresLayers<D, double>),
          "terse: a layer-wise preconditioner's rule needs `Real measured(int k, e, Real u) const`, which "
          "returns the sample of statistic k");
      static_assert(detail::ScalesLayers<F, float> && detail::ScalesLayers<D, double>,
                    "terse: a layer-wise preconditioner's rule needs `Real factor(layer) const`, which "
                    "returns the factor of the learning rate");
    }
    static_assert(detail::MoveFits<F, float> && detail::MoveFits<D, double>,
                  "terse: a layer-wise preconditioner's move is `Real move(e, Real u, Real rate) const`");
    static_assert(detail::ObserveFits<F, float> && detail::ObserveFits<D, double>,
                  "terse: a layer-wise preconditioner's observe is `void observe(layer, Real factor) const`");
  }
  return detail::check_parameters<P>() && Preconditioner<P>;
}

}  // namespace terse
