// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>

#include "terse/core/element.hpp"
#include "terse/core/policy.hpp"
#include "terse/core/vector.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"

namespace terse {

/// Properties of a mixing rule's arithmetic.
struct MixingFacts {
  int vectors = 1;  ///< the number of vectors sent together, 1 or 2
  bool before_gradient =
      false;  ///< outgoing needs no gradient, so that messages may be sent while it is computed
  bool combines_first =
      false;  ///< the gradient is computed at the mixture: the order is outgoing, update, the gradient, adapt(e)
  bool moves_by_packet =
      false;  ///< compressed segments: update(e, decoded, 0) with this rank's own packet as decoded, and
              ///< then take_up(e, difference)
  bool needs_fixed = false;  ///< keeps sums over neighbours from step to step
  bool needs_fixed_symmetric =
      false;                     ///< diverges on directed graphs and on graphs that change from step to step
  bool needs_spectrum = false;   ///< diverges if a fixed symmetric W has an eigenvalue at or below -1/3
  bool allows_push_sum = false;  ///< works with push-sum weights
  bool sums_over_ranks =
      false;  ///< a buffer's sum over all ranks has a meaning, such as the mean gradient or 0, so
              ///< that the rule can't go on without one of them
  bool second_by_difference = false;  ///< the second vector's update does not read its `own`
};

namespace detail {

template <class Rule, class Real>
concept Sends = requires(const Rule& rule, const SomeMixingElement<Real>& e) {
  { rule.outgoing(e) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept Updates = requires(const Rule& rule, const SomeMixingElement<Real>& e, Real own, Real difference) {
  { rule.update(e, own, difference) } -> std::same_as<Real>;
};
template <class Rule, class Real, int K>
concept SendsVector = requires(const Rule& rule, const SomeMixingElement<Real>& e) {
  { rule.outgoing(Vector<K>{}, e) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept UpdatesFirst = requires(const Rule& rule, const SomeMixingElement<Real>& e, Real own,
                                Real difference) {
  { rule.update(Vector<0>{}, e, own, difference) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept UpdatesSecond = requires(const Rule& rule, const SomeMixingElement<Real>& e, Real own,
                                 Real difference) {
  rule.update(Vector<1>{}, e, own, difference);
};
template <class Rule, class Real>
concept Adapts = requires(const Rule& rule, const SomeMixingElement<Real>& e) {
  { rule.adapt(e) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept TakesUp = requires(const Rule& rule, const SomeMixingElement<Real>& e, Real difference) {
  rule.take_up(e, difference);
};
template <class Rule, class Real>
concept MixesOne = Sends<Rule, Real> && Updates<Rule, Real>;
template <class Rule, class Real>
concept MixesTwo = SendsVector<Rule, Real, 0> && SendsVector<Rule, Real, 1> && UpdatesFirst<Rule, Real> &&
    UpdatesSecond<Rule, Real>;
template <class M, class Real>
concept MixingArithmetic = MakesRule<M, Real> && requires {
  typename M::template Rule<Real>;
  requires(M::facts.vectors == 1 && MixesOne<typename M::template Rule<Real>, Real>) ||
      (M::facts.vectors == 2 && MixesTwo<typename M::template Rule<Real>, Real>);
  requires(!M::facts.combines_first || Adapts<typename M::template Rule<Real>, Real>);
  requires(!M::facts.moves_by_packet || TakesUp<typename M::template Rule<Real>, Real>);
  requires AtStepFits<typename M::template Rule<Real>, Real>;
};
template <class Rule, class Real>
concept Points = requires(const Rule& rule, const SomeMixingElement<Real>& e) {
  { rule.direction(e) } -> std::same_as<Real>;
};
template <class Rule, class Real>
concept Keeps = requires(const Rule& rule, const SomeMixingElement<Real>& e) {
  rule.keep(e);
};
template <class D, class Real>
concept DirectionRule = MakesRule<D, Real> && requires {
  typename D::template Rule<Real>;
  requires Points<typename D::template Rule<Real>, Real>;
  requires Keeps<typename D::template Rule<Real>, Real>;
  requires AtStepFits<typename D::template Rule<Real>, Real>;
};

}  // namespace detail

/// The arithmetic of a decentralized SGD method for one element: the momentum correction of ParameterMixing. A copyable
/// policy of hyper-parameters with
///
///     static constexpr MixingFacts facts{...};
///     static constexpr std::array<const char*, N> state{...};    names of its buffers, n floats each, which start at 0
///     template <class Real> struct Rule                          the arithmetic for one element; its members are the
///                                                                hyper-parameters, in their order
///
/// and, if it has hyper-parameters, hyper_parameters(), a std::array with a HyperParameter for each. If that is not enough, it has
/// check(), settings(visit) and `template <class Real> Rule<Real> rule() const`. An element e has these members: x() is the parameter
/// after decoupled weight decay, held() the parameter before it, g() the scaled gradient, rate() the learning rate, ratio() rate() over
/// the last step's (0 after 0), e[k] buffer k, and scalar(k) a scalar. A rule has
///
///     outgoing(e)                        z, the value sent; changes nothing, and may be called again
///     update(e, own, difference) -> x   from z and sum_j W_ij (z_j - z_i), which is exactly 0 if all z are equal
///     adapt(e) -> x                     if facts.combines_first
///     take_up(e, difference)            if facts.moves_by_packet
///     at_step(t)                        optional: std::array<Real, N>, the values of e.scalar(k) in step t = 1, 2, ...
///
/// or, with two vectors, outgoing and update for Vector<0>{} and Vector<1>{} as first argument. The second vector's update
/// is called after the first one's and returns nothing. Arithmetic is a template on Real, so that oracles run the same
/// code in double. Optional members of the policy are two. `double eigenvalues_above() const` is a limit that all
/// eigenvalues of a symmetric, fixed W must exceed. `float largest_ratio(t) const` is the upper bound of ratio() in step
/// t.
template <class M>
concept MixingRule = std::copyable<M> && detail::NamesBuffers<M> && requires {
  requires std::same_as<const MixingFacts, decltype(M::facts)>;
  requires detail::MixingArithmetic<M, float> && detail::MixingArithmetic<M, double>;
};

/// Reports a missing member of a mixing rule with a readable static_assert.
template <class M>
constexpr bool check_mixing_rule() {
  static_assert(std::copyable<M>, "terse: a mixing rule is a value: it must be copyable");
  constexpr bool has_facts = detail::StatesFacts<M, MixingFacts>;
  static_assert(has_facts, "terse: a mixing rule states `static constexpr MixingFacts facts{...}`");
  static_assert(
      detail::NamesBuffers<M>,
      "terse: a mixing rule names its buffers: `static constexpr std::array<const char*, N> state{...}`");
  constexpr bool makes_rule = detail::MakesRule<M, float> && detail::MakesRule<M, double>;
  static_assert(makes_rule,
                "terse: a mixing rule needs `template <class Real> struct Rule`, its arithmetic in float "
                "and, for oracles, in double, whose members are its hyper_parameters() in their order; or "
                "also `template <class Real> Rule<Real> rule() const`");
  if constexpr (has_facts && makes_rule) {
    using F = typename M::template Rule<float>;
    using D = typename M::template Rule<double>;
    static_assert(M::facts.vectors == 1 || M::facts.vectors == 2,
                  "terse: a mixing rule sends one vector or two: facts.vectors is 1 or 2");
    if constexpr (M::facts.vectors == 1) {
      static_assert(detail::Sends<F, float> && detail::Sends<D, double>,
                    "terse: a mixing rule needs `Real outgoing(e) const`, which returns the value to send");
      static_assert(detail::Updates<F, float> && detail::Updates<D, double>,
                    "terse: a mixing rule needs `Real update(e, own, difference) const`, the new parameter");
    } else {
      static_assert(detail::SendsVector<F, float, 0> && detail::SendsVector<F, float, 1> &&
                        detail::SendsVector<D, double, 0> && detail::SendsVector<D, double, 1>,
                    "terse: a mixing rule of two vectors needs `Real outgoing(Vector<0>, e) const` and `Real "
                    "outgoing(Vector<1>, e) const`, which return the values to send");
      static_assert(detail::UpdatesFirst<F, float> && detail::UpdatesFirst<D, double>,
                    "terse: a mixing rule of two vectors needs `Real update(Vector<0>, e, own, difference) "
                    "const`, the new parameter");
      static_assert(detail::UpdatesSecond<F, float> && detail::UpdatesSecond<D, double>,
                    "terse: a mixing rule of two vectors needs `void update(Vector<1>, e, own, difference) "
                    "const`");
    }
    static_assert(
        !M::facts.combines_first || (detail::Adapts<F, float> && detail::Adapts<D, double>),
        "terse: a mixing rule that combines first (facts.combines_first) needs `Real adapt(e) const`, "
        "the new parameter from the gradient at the mixture");
    static_assert(
        !M::facts.moves_by_packet || (detail::TakesUp<F, float> && detail::TakesUp<D, double>),
        "terse: a mixing rule that moves by its packet (facts.moves_by_packet) needs `void take_up(e, "
        "difference) const`");
    static_assert(detail::AtStepFits<F, float> && detail::AtStepFits<D, double>,
                  "terse: a mixing rule's at_step is `std::array<Real, N> at_step(std::uint64_t t) const`");
  }
  static_assert(
      !requires { &M::eigenvalues_above; } ||
          requires(const M& policy) {
            { policy.eigenvalues_above() } -> std::same_as<double>;
          },
      "terse: a mixing rule's eigenvalues_above is `double eigenvalues_above() const`");
  return detail::check_parameters<M>() && MixingRule<M>;
}

/// The type of a local direction's `facts`, which distinguishes it from a mixing rule.
struct DirectionFacts {};

/// A local direction along which rules such as AdaptThenCombine step: a copyable policy with facts, state, Rule and
/// hyper_parameters(), as in a mixing rule. Its rule has
///
///     direction(e)     the direction by this rank's own gradient; changes nothing, and may be called again
///     keep(e)          updates the buffers, once in a step
///     at_step(t)       optional
template <class D>
concept LocalDirection = std::copyable<D> && detail::NamesBuffers<D> && requires {
  requires std::same_as<const DirectionFacts, decltype(D::facts)>;
  requires detail::DirectionRule<D, float> && detail::DirectionRule<D, double>;
};

/// Reports a missing member of a local direction with a readable static_assert.
template <class D>
constexpr bool check_local_direction() {
  static_assert(std::copyable<D>, "terse: a local direction is a value: it must be copyable");
  static_assert(detail::StatesFacts<D, DirectionFacts>,
                "terse: a local direction states `static constexpr DirectionFacts facts{}`");
  static_assert(
      detail::NamesBuffers<D>,
      "terse: a local direction names its buffers: `static constexpr std::array<const char*, N> state{...}`");
  constexpr bool makes_rule = detail::MakesRule<D, float> && detail::MakesRule<D, double>;
  static_assert(makes_rule,
                "terse: a local direction needs `template <class Real> struct Rule`, its arithmetic in float "
                "and, for oracles, in double, whose members are its hyper_parameters() in their order; or "
                "also `template <class Real> Rule<Real> rule() const`");
  if constexpr (makes_rule) {
    using F = typename D::template Rule<float>;
    using R = typename D::template Rule<double>;
    static_assert(detail::Points<F, float> && detail::Points<R, double>,
                  "terse: a local direction's rule needs `Real direction(e) const`, which changes nothing");
    static_assert(detail::Keeps<F, float> && detail::Keeps<R, double>,
                  "terse: a local direction's rule needs `void keep(e) const`, which changes its buffers");
    static_assert(
        detail::AtStepFits<F, float> && detail::AtStepFits<R, double>,
        "terse: a local direction's at_step is `std::array<Real, N> at_step(std::uint64_t t) const`");
  }
  return detail::check_parameters<D>() && LocalDirection<D>;
}

TERSE_NUMERICS_BEGIN

namespace detail {

/// Returns v or, with Nesterov, g + momentum v. Uses products, since a branch would prevent vectorization.
template <class Real>
TERSE_HD Real ahead(bool nesterov, Real momentum, Real g, Real v) {
  const Real fresh = nesterov ? 1 : 0, kept = nesterov ? momentum : 1;
  return fresh * g + kept * v;
}

}  // namespace detail

/// The local direction of a step that is the gradient.
struct GradientDirection {
  static constexpr DirectionFacts facts{};
  static constexpr std::array<const char*, 0> state{};

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real direction(const Element& e) const {
      return e.g();
    }
    template <class Element>
    TERSE_HD void keep(const Element&) const {}
  };
};

/// The local direction of a step with momentum: m = momentum m + g, in buffer 0, or with Nesterov g + momentum m.
struct MomentumDirection {
  static constexpr DirectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};
  float momentum = 0.9F;  ///< in [0, 1)
  bool nesterov = false;  ///< true for Nesterov momentum

  constexpr std::array<HyperParameter, 2> hyper_parameters() const {
    return {{{"momentum", momentum, allowed::below_one}, {"nesterov", nesterov}}};
  }

  template <class Real>
  struct Rule {
    Real momentum;
    bool nesterov = false;
    template <class Element>
    TERSE_HD Real velocity(const Element& e) const {
      return momentum * e[0] + e.g();
    }
    template <class Element>
    TERSE_HD Real direction(const Element& e) const {
      return detail::ahead(nesterov, momentum, e.g(), velocity(e));
    }
    template <class Element>
    TERSE_HD void keep(const Element& e) const {
      e[0] = velocity(e);
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
