// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "terse/core/element.hpp"
#include "terse/core/policy.hpp"
#include "terse/executor/concept.hpp"

// The members that the preconditioner's contract in concept.hpp requires, one by one.

namespace terse {

/// The statistics that a layer-wise preconditioner measures for each layer between the sweeps: EuclideanNorm, MaxAbs
/// or another Statistic whose Scale is a float. Each costs one read-only pass.
template <class... S>
struct Statistics {
  static constexpr int count = sizeof...(S);
};

/// Properties of a preconditioner's arithmetic.
struct PreconditionerFacts {
  /// The step of a layer depends on statistics over the whole layer, so a second sweep takes it.
  bool layer_wise = false;
  /// Segments with fewer dimensions are not measured and have the factor 1.
  std::size_t least_dimensions = 0;
  /// Continues from the state that a first stage has learned: only for the second stage of a Staged.
  bool continues_first_stage = false;
  /// step(e, 0, 0) is 0 and changes nothing, see CorrectionFacts.
  bool rests_at_zero = false;
  /// Layer-wise; between the sweeps the policy's `Sequence` replaces the step of each hidden matrix by its nearest
  /// orthogonal matrix: see Orthogonal.
  bool orthogonalizes = false;
  /// Reads e.hidden(), which exists only for elements of methods that average over all ranks.
  bool asks_hidden = false;
};

namespace detail {

template <class Rule, class Real>
concept Steps = requires(const Rule& rule, const SomeElement<Real>& e, Real mean, Real direction) {
  { rule.step(e, mean, direction) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept DenominatorFits = !requires {
  &Rule::template denominator<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e) {
  { rule.denominator(e) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept CarryDenominatorFits = !requires {
  &Rule::template carry<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e, Real denominator) { rule.carry(e, denominator); };
template <class Rule, class Real>
concept TakesPartFits = !requires {
  &Rule::template takes_part<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e) {
  { rule.takes_part(e) } -> std::same_as<bool>;
};
template <class Rule>
concept NamesStatistics = requires {
  requires(Rule::measures::count > 0);
};
template <class Rule, class Real>
concept MeasuresLayers = requires(const Rule& rule, const SomeElement<Real>& e, Real u) {
  { rule.measured(0, e, u) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept ScalesLayers = requires(const Rule& rule, const SomeLayer<Real>& layer) {
  { rule.factor(layer) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept MoveFits = !requires {
  &Rule::template move<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e, Real u, Real rate) {
  { rule.move(e, u, rate) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept ObserveFits = !requires {
  &Rule::template observe<SomeLayer<Real>>;
}
|| requires(const Rule& rule, const SomeLayer<Real>& layer, Real factor) { rule.observe(layer, factor); };
template <class P, class Real>
concept PreconditionerRule = MakesRule<P, Real> && requires {
  typename P::template Rule<Real>;
  requires Steps<typename P::template Rule<Real>, Real>;
  requires DenominatorFits<typename P::template Rule<Real>, Real>;
  requires CarryDenominatorFits<typename P::template Rule<Real>, Real>;
  requires TakesPartFits<typename P::template Rule<Real>, Real>;
  requires AtStepFits<typename P::template Rule<Real>, Real>;
  requires(!P::facts.layer_wise || ScalesLayers<typename P::template Rule<Real>, Real>);
  requires(!P::facts.layer_wise || P::facts.orthogonalizes ||
           (NamesStatistics<typename P::template Rule<Real>> &&
            MeasuresLayers<typename P::template Rule<Real>, Real>));
  requires MoveFits<typename P::template Rule<Real>, Real>;
  requires ObserveFits<typename P::template Rule<Real>, Real>;
};

}  // namespace detail

}  // namespace terse
