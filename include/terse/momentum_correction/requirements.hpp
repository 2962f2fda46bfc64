// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "terse/core/element.hpp"
#include "terse/core/half.hpp"
#include "terse/core/policy.hpp"
#include "terse/core/step_scalars.hpp"
#include "terse/executor/concept.hpp"

// The members that the momentum correction's contract in concept.hpp requires, one by one.

namespace terse {

TERSE_NUMERICS_BEGIN

/// This rank's own gradient, scaled for this step.
template <Number G = float>
struct ScaledGradient {
  const G* gradients;
  const StepScalars* now;
  float scale = 1;  ///< this step's scale, set when a piece is entered

  using StreamsOf = ScaledGradient;
  TERSE_HD auto streams() { return reads(gradients); }
  TERSE_HD void enter(const Piece&) { scale = now->gradient_scale; }
  TERSE_HD float operator()(const Piece&, index_t i) const { return widened(gradients[i]) * scale; }
};
/// Deduces the type of the gradients.
template <Number G>
ScaledGradient(const G*, const StepScalars*) -> ScaledGradient<G>;

TERSE_NUMERICS_END

/// Properties of a momentum correction's arithmetic.
struct CorrectionFacts {
  /// The mean must be that of whole messages: the rule is meaningless for partial sums, which some topologies compress on
  /// the way.
  bool needs_whole_messages = false;
  /// Messages that cancel must have a mean that decodes as 0, which compressors with two levels cannot represent.
  bool needs_zero = false;
  /// The mean must be exactly that of the packets that ranks have sent: no topology may compress it again.
  bool needs_exact_mean = false;
  /// direction(e, 0) is 0 and changes nothing. If the preconditioner also rests at zero, and nothing decays, a step over
  /// selected elements visits only those.
  bool rests_at_zero = false;
  /// message(e) writes nothing, so that the buffers e[k] are equal on all ranks.
  bool common = false;
  /// Reads e.hidden(), which only the elements of methods that average over all ranks have.
  bool asks_hidden = false;
};

namespace detail {

template <class Rule, class Real>
concept Directs = requires(const Rule& rule, const SomeElement<Real>& e, Real mean) {
  { rule.direction(e, mean) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept MessageFits = !requires {
  &Rule::template message<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e) {
  { rule.message(e) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept ExactDirectionFits = !requires {
  &Rule::template exact_direction<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e, Real mean) {
  { rule.exact_direction(e, mean) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept MeanGradientFits = !requires {
  &Rule::template mean_gradient<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e, Real mean) {
  { rule.mean_gradient(e, mean) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept BalanceFits = !requires {
  &Rule::template balance<SomeLayers<Real>>;
}
|| requires(const Rule& rule, const SomeLayers<Real>& layers) { rule.balance(layers); };
template <class Rule, class Real>
concept SentFits = !requires {
  &Rule::template sent<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e, Real decoded) { rule.sent(e, true, decoded); };
template <class Rule, class Real>
concept SteppedFits = !requires {
  &Rule::template stepped<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e) { rule.stepped(e, true); };
template <class Rule, class Real>
concept CarryMomentumFits = !requires {
  &Rule::template carry<SomeElement<Real>>;
}
|| requires(const Rule& rule, const SomeElement<Real>& e) { rule.carry(e, true); };
template <class M, class Real>
concept CorrectionRule = MakesRule<M, Real> && requires {
  typename M::template Rule<Real>;
  requires Directs<typename M::template Rule<Real>, Real>;
  requires MessageFits<typename M::template Rule<Real>, Real>;
  requires ExactDirectionFits<typename M::template Rule<Real>, Real>;
  requires MeanGradientFits<typename M::template Rule<Real>, Real>;
  requires BalanceFits<typename M::template Rule<Real>, Real>;
  requires SentFits<typename M::template Rule<Real>, Real>;
  requires SteppedFits<typename M::template Rule<Real>, Real>;
  requires CarryMomentumFits<typename M::template Rule<Real>, Real>;
  requires AtStepFits<typename M::template Rule<Real>, Real>;
};

/// Checks whether a momentum correction has `stepped`.
template <class M>
concept HearsOfSteps = requires(const typename M::template Rule<float>& rule, const SomeElement<float>& e) {
  rule.stepped(e, true);
};

}  // namespace detail

}  // namespace terse
