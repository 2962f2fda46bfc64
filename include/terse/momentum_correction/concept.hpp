// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "terse/momentum_correction/requirements.hpp"

namespace terse {

/// The position of momentum between gradient and parameters, in methods that average over all ranks. It defines the message
/// that a rank sends, and the direction made from the mean. A copyable policy of hyper-parameters with
///
///     static constexpr CorrectionFacts facts{...};
///     static constexpr std::array<const char*, N> state{...};    names of its buffers, n floats each, which start at 0
///     template <class Real> struct Rule                          the arithmetic for one element; its members are the
///                                                                hyper-parameters, in their order
///
/// and, if it has hyper-parameters, hyper_parameters(), a std::array with a HyperParameter for each. If that is not enough, it has
/// check(), settings(visit) and `template <class Real> Rule<Real> rule() const`. An element e has these members: x() is the parameter, g()
/// the scaled gradient, rate() and decay() its segment's learning rate and weight decay, e[k] buffer k, and scalar(k) a scalar: see
/// SomeElement. A rule has
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
/// Each function is called once for an element, in any order over elements. Arithmetic is a template on Real, so that oracles
/// run the same code in double. message may write values that differ between ranks; direction must not, and may read only mean
/// and e[k]. A message that is not finite is refused or counts as 0. Nevertheless the stored values must stay finite, also after
/// means of magnitudes up to 2^63.
template <class M>
concept MomentumCorrection = std::copyable<M> && detail::NamesBuffers<M> && requires {
  requires std::same_as<const CorrectionFacts, decltype(M::facts)>;
  requires detail::CorrectionRule<M, float> && detail::CorrectionRule<M, double>;
};

/// Reports a missing member of a momentum correction with a readable static_assert.
template <class M>
constexpr bool check_momentum_correction() {
  static_assert(std::copyable<M>, "terse: a momentum correction is a value: it must be copyable");
  static_assert(detail::StatesFacts<M, CorrectionFacts>,
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
