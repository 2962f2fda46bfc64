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
  /// The mean must be that of whole messages: the rule has no meaning for partial sums, which some topologies compress on
  /// the way.
  bool needs_whole_messages = false;
  /// The mean of messages that cancel must decode as 0, which compressors with two levels cannot represent.
  bool needs_zero = false;
  /// The mean must be exactly that of the packets that ranks have sent: no topology may compress it again.
  bool needs_exact_mean = false;
  /// direction(e, 0) is 0 and changes nothing. If the preconditioner rests at zero, too, and nothing decays, a step over
  /// selected elements visits only those.
  bool rests_at_zero = false;
  /// message(e) writes nothing, so that the buffers e[k] are the same on all ranks.
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

/// The position of momentum between gradient and parameters, in methods that average over all ranks: the message that a rank
/// sends, and the direction made from the mean. A copyable policy of hyper-parameters with
///
///     static constexpr CorrectionFacts facts{...};
///     static constexpr std::array<const char*, N> state{...};    names of its buffers, n floats each, which start at 0
///     template <class Real> struct Rule                          the arithmetic for one element; its members are the
///                                                                hyper-parameters, in their order
///
/// and, if it has hyper-parameters, hyper_parameters(), a std::array with a HyperParameter for each; where that does not suffice, check(),
/// settings(visit) and `template <class Real> Rule<Real> rule() const`. An element e has x(), the parameter, g(), the scaled
/// gradient, rate() and decay(), its segment's learning rate and weight decay, e[k], buffer k, and scalar(k): see SomeElement. A rule has
///
///     direction(e, mean)         the direction for the mean of the messages
///     message(e)                 optional: the message of this rank; by default e.g()
///     exact_direction(e, mean)   optional: the direction for a mean of gradients, as in exact steps and segments;
///                                by default direction(e, mean)
///     mean_gradient(e, mean)     optional: the gradient estimated from a mean of messages, with e[k] as they are before
///                                direction: the preconditioner learns from it; by default mean
///     ReplacesOf                 optional, `using ReplacesOf = Rule`: direction(e, mean) of this very Rule sets every e[k] and
///                                reads none, so that a device needn't read them either
///     sent(e, keep, decoded)     optional: receives this rank's message as decoded by the receivers
///     stepped(e, taken)          optional, with preconditioners that orthogonalize: whether the step is taken; it is not if the
///                                preconditioner has left the element out (OrthogonalRows)
///     carry(e, keep)             optional, see Staged
///     balance(layers)            optional, see Staged: sets the rule's own numbers for each layer (segment), which
///                                `static constexpr std::array<const char*, N> layer_state{...}` names and e.layer(k)
///                                reads, 0 before; called once for the layers of all groups, by group 0's rule; see SomeLayers
///     at_step(t)                 optional: std::array<Real, N>, the values of e.scalar(k) in step t = 1, 2, ...
///
/// Each is called once for an element, in any order over elements. Arithmetic is templated on Real, so that oracles run the same
/// text in double. message may write values that differ between ranks; direction must not, and reads only mean and e[k].
/// A message that is not finite is refused or counts as 0. The stored values must stay finite all the same, also after means of
/// magnitudes up to 2^63.
template <class M>
concept MomentumCorrection = std::copyable<M> && detail::NamesBuffers<M> && requires {
  requires std::same_as<const CorrectionFacts, decltype(M::facts)>;
  requires detail::CorrectionRule<M, float> && detail::CorrectionRule<M, double>;
};

/// Reports a missing member of a momentum correction with a readable static_assert.
template <class M>
constexpr bool check_momentum_correction() {
  static_assert(std::copyable<M>, "terse: a momentum correction is a value: it must be copyable");
  static_assert(
      requires { requires std::same_as<const CorrectionFacts, decltype(M::facts)>; },
      "terse: a momentum correction states `static constexpr CorrectionFacts facts{...}`");
  static_assert(
      detail::NamesBuffers<M>,
      "terse: a momentum correction names its buffers: `static constexpr std::array<const char*, N> "
      "state{...}`");
  constexpr bool makes_rule = detail::MakesRule<M, float> && detail::MakesRule<M, double>;
  static_assert(makes_rule,
                "terse: a momentum correction needs `template <class Real> struct Rule`, its arithmetic in "
                "float and, for oracles, in double, whose members are its hyper_parameters() in their order; "
                "or also `template <class Real> Rule<Real> rule() const`");
  if constexpr (makes_rule) {
    using F = typename M::template Rule<float>;
    using D = typename M::template Rule<double>;
    static_assert(
        detail::Directs<F, float> && detail::Directs<D, double>,
        "terse: a momentum correction's rule needs `Real direction(e, mean) const`, where the mean of "
        "the messages points");
    static_assert(detail::MessageFits<F, float> && detail::MessageFits<D, double>,
                  "terse: a momentum correction's message is `Real message(e) const`");
    static_assert(detail::ExactDirectionFits<F, float> && detail::ExactDirectionFits<D, double>,
                  "terse: a momentum correction's exact_direction is `Real exact_direction(e, mean) const`");
    static_assert(detail::MeanGradientFits<F, float> && detail::MeanGradientFits<D, double>,
                  "terse: a momentum correction's mean_gradient is `Real mean_gradient(e, mean) const`");
    static_assert(detail::BalanceFits<F, float> && detail::BalanceFits<D, double>,
                  "terse: a momentum correction's balance is `void balance(layers) const`");
    static_assert(detail::SentFits<F, float> && detail::SentFits<D, double>,
                  "terse: a momentum correction's sent is `void sent(e, bool keep, Real decoded) const`");
    static_assert(detail::SteppedFits<F, float> && detail::SteppedFits<D, double>,
                  "terse: a momentum correction's stepped is `void stepped(e, bool taken) const`");
    static_assert(detail::CarryMomentumFits<F, float> && detail::CarryMomentumFits<D, double>,
                  "terse: a momentum correction's carry is `void carry(e, bool keep) const`");
    static_assert(detail::AtStepFits<F, float> && detail::AtStepFits<D, double>,
                  "terse: a momentum correction's at_step is `std::array<Real, N> at_step(std::uint64_t t) "
                  "const`");
  }
  return detail::check_parameters<M>() && MomentumCorrection<M>;
}

TERSE_NUMERICS_BEGIN

namespace detail {

/// Updates a velocity, v = momentum v + g, and returns it or, with Nesterov, g + momentum v.
template <class Real>
TERSE_HD Real accelerate(Real& velocity, Real momentum, bool nesterov, Real g) {
  const Real v = momentum * velocity + g;
  velocity = keep_if(is_finite(v), v, velocity);
  return keep_if(nesterov, g + momentum * v, v);
}

/// Returns the number of scalars that a rule has.
template <class Rule>
constexpr int scalars_of_rule() {
  if constexpr (requires(const Rule& rule) { rule.at_step(std::uint64_t{}); })
    return static_cast<int>(std::tuple_size_v<decltype(std::declval<const Rule&>().at_step(1))>);
  else
    return 0;
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
