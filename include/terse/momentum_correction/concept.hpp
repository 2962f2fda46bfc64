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

/// This rank's own gradient, scaled as this step wants it.
template <Number G = float>
struct ScaledGradient {
  const G* gradients;
  const StepScalars* now;
  float scale = 1;  ///< this step's, once a piece is entered

  using StreamsOf = ScaledGradient;
  TERSE_HD auto streams() { return reads(gradients); }
  TERSE_HD void enter(const Piece&) { scale = now->gradient_scale; }
  TERSE_HD float operator()(const Piece&, index_t i) const { return widened(gradients[i]) * scale; }
};
/// Deduces the type of the gradients.
template <Number G>
ScaledGradient(const G*, const StepScalars*) -> ScaledGradient<G>;

TERSE_NUMERICS_END

/// What is true of a momentum correction's arithmetic.
struct CorrectionFacts {
  /// The mean must be that of whole messages: what partial sums would become in a topology that compresses them on the
  /// way means nothing to it.
  bool needs_whole_messages = false;
  /// The mean of messages that cancel must read as 0, which compressors of two levels don't have.
  bool needs_zero = false;
  /// The mean must be that of what ranks have sent: no topology may compress it again.
  bool needs_exact_mean = false;
  /// direction(e, 0) is 0 and changes nothing. Where the preconditioner rests, too, and nothing decays, a step over picked
  /// elements goes to those alone.
  bool rests_at_zero = false;
  /// message(e) writes nothing, so that e[k] are the same on all ranks.
  bool common = false;
  /// Asks elements whether they are hidden, which those of means over all ranks alone know.
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

/// Whether a momentum correction asks whether steps are taken along its direction.
template <class M>
concept HearsOfSteps = requires(const typename M::template Rule<float>& rule, const SomeElement<float>& e) {
  rule.stepped(e, true);
};

}  // namespace detail

/// Where momentum stands between gradient and parameters, of methods that average over all ranks: what a rank sends, and
/// where the mean that arrives points. A copyable policy of hyper-parameters with
///
///     static constexpr CorrectionFacts facts{...};
///     static constexpr std::array<const char*, N> state{...};    names of its buffers, n floats each, which start at 0
///     template <class Real> struct Rule                          the arithmetic for one element; its members are the
///                                                                hyper-parameters, in their order
///
/// and, where it has hyper-parameters, hyper_parameters(), a std::array with a HyperParameter for each; where that can't say it, check(),
/// settings(visit) and `template <class Real> Rule<Real> rule() const`. An element e shows x(), the parameter, g(), the scaled
/// gradient, rate() and decay(), its segment's learning rate and weight decay, e[k], buffer k, and scalar(k): see SomeElement. A rule has
///
///     direction(e, mean)         where the mean of the messages points
///     message(e)                 optional: what this rank sends; by default e.g()
///     exact_direction(e, mean)   optional: the same where the mean is that of gradients, as in exact steps and segments;
///                                by default direction(e, mean)
///     mean_gradient(e, mean)     optional: the gradient that a mean of messages stands for, from e[k] as they are before
///                                direction: what the preconditioner learns from; by default mean
///     ReplacesOf                 optional, `using ReplacesOf = Rule`: direction(e, mean) of this very Rule sets every e[k] and
///                                reads none, so that a device needn't either
///     sent(e, keep, decoded)     optional: what the receivers read of this rank's message
///     stepped(e, taken)          optional, beside preconditioners that orthogonalize: the step is taken, or not, where the
///                                preconditioner has left the element out (OrthogonalRows)
///     carry(e, keep)             optional, see Staged
///     balance(layers)            optional, see Staged: sets numbers of its own for each layer (segment), those which
///                                `static constexpr std::array<const char*, N> layer_state{...}` names and e.layer(k)
///                                reads, 0 before; once for the layers of all groups, by group 0's rule; see SomeLayers
///     at_step(t)                 optional: std::array<Real, N>, what e.scalar(k) is in step t = 1, 2, ...
///
/// each once for an element, in any order over elements. Arithmetic is templated on Real, so that oracles run the same text
/// in double. What message writes differs between ranks; what direction writes must not, and reads mean and e[k] alone.
/// A message that is not finite is refused or counts as 0: what is written must stay finite all the same, after means of
/// magnitudes up to 2^63, too.
template <class M>
concept MomentumCorrection = std::copyable<M> && detail::NamesBuffers<M> && requires {
  requires std::same_as<const CorrectionFacts, decltype(M::facts)>;
  requires detail::CorrectionRule<M, float> && detail::CorrectionRule<M, double>;
};

/// Says in words what a type lacks to be a momentum correction.
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

/// Moves a velocity, v = momentum v + g, and points along it or, with Nesterov, along g + momentum v.
template <class Real>
TERSE_HD Real accelerate(Real& velocity, Real momentum, bool nesterov, Real g) {
  const Real v = momentum * velocity + g;
  velocity = keep_if(is_finite(v), v, velocity);
  return keep_if(nesterov, g + momentum * v, v);
}

/// How many scalars of its own a rule has.
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
