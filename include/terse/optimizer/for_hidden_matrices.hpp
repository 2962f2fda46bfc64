// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "terse/momentum_correction/concept.hpp"
#include "terse/optimizer/averaging_rules.hpp"
#include "terse/preconditioner/concept.hpp"

namespace terse {

/// One policy for hidden matrices (segments marked with Segment::hidden), and another for all other segments: two momentum
/// corrections or two preconditioners. Buffers with equal names are one buffer. Both momentum corrections must send the gradient.
/// Only the preconditioner of hidden matrices may work on whole matrices.
///
/// State: n floats for each name, even if only one policy uses it.
template <class Hidden, class Other>
struct ForHiddenMatrices {
  static_assert(
      (MomentumCorrection<Hidden> && MomentumCorrection<Other>) ||
          (Preconditioner<Hidden> && Preconditioner<Other>),
      "terse: ForHiddenMatrices takes two momentum corrections or two preconditioners: the first for hidden "
      "matrices, the second for all other segments");
};

/// The old name, which version 0.2 removes.
template <class Hidden, class Other>
using OnHidden [[deprecated("its name is ForHiddenMatrices")]] = ForHiddenMatrices<Hidden, Other>;

TERSE_NUMERICS_BEGIN

namespace detail {

/// The combined buffers of two policies.
template <class A, class B>
struct Together {
  static constexpr auto names = all_names<false>(A::state, B::state, A::state, B::state);
  static constexpr auto state = [] {
    std::array<const char*, static_cast<std::size_t>(names.count)> all{};
    std::copy_n(names.names.begin(), all.size(), all.begin());
    return all;
  }();
  static_assert(layer_state_of<A>().size() == 0 && layer_state_of<B>().size() == 0,
                "terse: ForHiddenMatrices takes no policies that keep numbers of layers");
};

/// A policy's places among the combined buffers, as a type, see Places.
template <class All, class Policy, class K = std::make_index_sequence<Policy::state.size()>>
struct PartPlaces;
template <class All, class Policy, std::size_t... K>
struct PartPlaces<All, Policy, std::index_sequence<K...>> {
  TERSE_HD static constexpr int buffer([[maybe_unused]] int k) {
    int place = 0;
    ((place = static_cast<int>(K) == k ? int{number<K>} : place), ...);
    return place;
  }

 private:
  template <std::size_t N>
  static constexpr int number = All::names.find(Policy::state[N]);
};

/// An element as seen by one of two policies, whose scalars begin at Scalar.
template <class Element, class Places, int Scalar>
struct PartOf {
  const Element& e;
  TERSE_HD auto x() const { return e.x(); }
  TERSE_HD auto g() const { return e.g(); }
  TERSE_HD auto rate() const { return e.rate(); }
  TERSE_HD auto decay() const { return e.decay(); }
  TERSE_HD bool hidden() const { return e.hidden(); }
  TERSE_HD auto scalar(int k) const { return e.scalar(Scalar + k); }
  TERSE_HD auto& operator[](int k) const { return e[Places::buffer(k)]; }
};

/// Two rules; the scalars of the second follow those of the first.
template <class Real, class A, class B>
struct EitherRule {
  using First = typename A::template Rule<Real>;
  using Second = typename B::template Rule<Real>;
  static constexpr int scalars = scalars_of_rule<First>(), all_scalars = scalars + scalars_of_rule<Second>();

  First on_hidden;
  Second on_others;

  std::array<Real, static_cast<std::size_t>(all_scalars)> at_step(std::uint64_t t) const {
    std::array<Real, static_cast<std::size_t>(all_scalars)> all{};
    auto to = all.begin();
    if constexpr (scalars > 0) to = std::copy_n(on_hidden.at_step(t).begin(), scalars, to);
    if constexpr (all_scalars > scalars) std::copy_n(on_others.at_step(t).begin(), all_scalars - scalars, to);
    return all;
  }

 protected:
  template <class Element>
  TERSE_HD static PartOf<Element, PartPlaces<Together<A, B>, A>, 0> first(const Element& e) {
    return {e};
  }
  template <class Element>
  TERSE_HD static PartOf<Element, PartPlaces<Together<A, B>, B>, scalars> second(const Element& e) {
    return {e};
  }
};

/// The common part of ForHiddenMatrices for momentum corrections and for preconditioners.
template <class A, class B>
struct Either {
  static constexpr auto state = Together<A, B>::state;
  A hidden{};
  B other{};

  void check() const {
    check_policy(hidden);
    check_policy(other);
  }
  template <class Visit>
  void settings(Visit&& visit) const {
    policy_settings(hidden, visit);
    policy_settings(other, visit);
  }
};

}  // namespace detail

/// ForHiddenMatrices for momentum corrections: A on hidden matrices, B on all other segments.
template <MomentumCorrection A, MomentumCorrection B>
struct ForHiddenMatrices<A, B> : detail::Either<A, B> {
  static_assert(!detail::HearsOfSteps<B>,
                "terse: a momentum correction that hears which steps are taken (RowMomentum) is for hidden "
                "matrices: ForHiddenMatrices takes it first");
  static constexpr CorrectionFacts facts{
      .needs_whole_messages = A::facts.needs_whole_messages || B::facts.needs_whole_messages,
      .rests_at_zero = A::facts.rests_at_zero && B::facts.rests_at_zero,
      .asks_hidden = true};

  template <class Real>
  struct Rule : detail::EitherRule<Real, A, B> {
    static_assert(
        !requires(const typename A::template Rule<Real>& a, const SomeElement<Real>& e) { a.message(e); } &&
            !requires(const typename B::template Rule<Real>& b, const SomeElement<Real>& e) { b.message(e); },
        "terse: ForHiddenMatrices takes momentum corrections that send the gradient (HeavyBall, "
        "ExponentialAverage): "
        "the message must not depend on whether a segment is hidden");
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      return e.hidden() ? this->on_hidden.direction(this->first(e), mean)
                        : this->on_others.direction(this->second(e), mean);
    }
    template <class Element>
    TERSE_HD void stepped(const Element& e, bool taken) const requires(detail::HearsOfSteps<A>) {
      if (e.hidden()) this->on_hidden.stepped(this->first(e), taken);
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {{rule_of<Real>(this->hidden), rule_of<Real>(this->other)}};
  }
};

namespace detail {
/// The polynomial sequence of a preconditioner that orthogonalizes; empty for others.
template <class P>
struct Orthogonalizing {};
template <class P>
requires(P::facts.orthogonalizes) struct Orthogonalizing<P> {
  using Sequence = typename P::Sequence;
};
}  // namespace detail

/// ForHiddenMatrices for preconditioners: A on hidden matrices, B on all other segments.
template <Preconditioner A, Preconditioner B>
struct ForHiddenMatrices<A, B> : detail::Either<A, B>, detail::Orthogonalizing<A> {
  static_assert(A::facts.layer_wise == A::facts.orthogonalizes && !B::facts.layer_wise,
                "terse: ForHiddenMatrices takes preconditioners of elements and, for hidden matrices, of "
                "whole matrices "
                "(NewtonSchulz); LayerWise measures all layers");
  static_assert(!A::facts.continues_first_stage && !B::facts.continues_first_stage,
                "terse: ForHiddenMatrices takes no preconditioner that continues from a first stage");
  static constexpr PreconditionerFacts facts{
      .layer_wise = A::facts.layer_wise,
      .rests_at_zero = A::facts.rests_at_zero && B::facts.rests_at_zero,
      .orthogonalizes = A::facts.orthogonalizes,
      .asks_hidden = true};

  template <class Real>
  struct Rule : detail::EitherRule<Real, A, B> {
    template <class Element>
    TERSE_HD Real step(const Element& e, Real mean, Real direction) const {
      return e.hidden() ? this->on_hidden.step(this->first(e), mean, direction)
                        : this->on_others.step(this->second(e), mean, direction);
    }
    template <class Layer>
    TERSE_HD Real factor(const Layer& layer) const requires(facts.layer_wise) {
      return layer.hidden() ? this->on_hidden.factor(layer) : Real{1};
    }
    template <class Element>
    TERSE_HD Real move(const Element& e, Real u, Real rate) const requires(facts.layer_wise) {
      return e.hidden() ? this->on_hidden.move(this->first(e), u, rate) : rate * (u + e.decay() * e.x());
    }
  };
  template <class Real>
  Rule<Real> rule() const {
    return {{rule_of<Real>(this->hidden), rule_of<Real>(this->other)}};
  }
};

TERSE_NUMERICS_END

}  // namespace terse
