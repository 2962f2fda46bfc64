// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/policy.hpp"

namespace terse {

/// The interface of an element for any rule. Concepts and check_...() try rules on it; its functions are not defined.
template <class Real>
struct SomeCommonElement {
  TERSE_HD Real x() const;                 ///< the parameter
  TERSE_HD Real g() const;                 ///< this rank's gradient, scaled
  TERSE_HD Real rate() const;              ///< learning rate
  TERSE_HD Real decay() const;             ///< weight decay
  TERSE_HD Real scalar(int k) const;       ///< scalar k of this step, see at_step
  TERSE_HD Real& operator[](int k) const;  ///< buffer k of the policy's `state`
};

/// The interface of an element for rules of methods that average over all ranks.
template <class Real>
struct SomeElement : SomeCommonElement<Real> {
  TERSE_HD Real layer(int k) const;  ///< number k of the policy's `layer_state`, for its layer
  TERSE_HD bool hidden() const;      ///< Segment::hidden of its layer
};

/// The interface of an element for rules that mix with neighbours.
template <class Real>
struct SomeMixingElement : SomeCommonElement<Real> {
  TERSE_HD Real held() const;   ///< the parameter before decoupled weight decay
  TERSE_HD Real ratio() const;  ///< this step's learning rate over the last one's; 0 after 0, see MixingRule
};

/// The interface of a layer for a layer-wise preconditioner.
template <class Real>
struct SomeLayer {
  TERSE_HD Real measured(int k) const;     ///< statistic k of the rule's `measures`
  TERSE_HD Real decay() const;             ///< weight decay
  TERSE_HD index_t rows() const;           ///< rows of the layer as a matrix: its first dimension
  TERSE_HD index_t columns() const;        ///< columns of that matrix: the product of all other dimensions
  TERSE_HD bool hidden() const;            ///< Segment::hidden
  TERSE_HD Real& operator[](int k) const;  ///< number k of the policy's `layer_state`
};

/// The interface of all layers for a momentum correction.
template <class Real>
struct SomeLayers {
  TERSE_HD index_t count() const;                         ///< number of layers
  TERSE_HD index_t elements(index_t layer) const;         ///< elements of this layer
  TERSE_HD Real norm(index_t layer) const;                ///< norm of buffer 0; 0 if not compressed
  TERSE_HD Real& operator()(index_t layer, int k) const;  ///< number k of the policy's `layer_state`
};

namespace detail {

/// Returns the names of the numbers that a policy keeps for each layer: its `layer_state`, none by default.
template <class P>
constexpr auto layer_state_of() {
  if constexpr (requires { P::layer_state.size(); })
    return P::layer_state;
  else
    return std::array<const char*, 0>{};
}

/// Appends a name to an array of names.
template <std::size_t N>
constexpr std::array<const char*, N + 1> with_name(const std::array<const char*, N>& names,
                                                   const char* last) {
  std::array<const char*, N + 1> all{};
  std::size_t k = 0;
  for (const char* name : names) all[k++] = name;
  all[k] = last;
  return all;
}

template <class A, class Value>
inline constexpr bool is_array_of = false;
template <class Value, std::size_t N>
inline constexpr bool is_array_of<std::array<Value, N>, Value> = true;

/// The result type of at_step.
template <class A, class Real>
concept ScalarsOf = is_array_of<A, Real>;

/// A rule whose at_step(t), if it has one, can be called. Otherwise an optional member with a wrong signature would be
/// ignored silently.
template <class Rule, class Real>
concept AtStepFits = !requires {
  &Rule::at_step;
}
|| requires(const Rule& rule) {
  { rule.at_step(1) } -> ScalarsOf<Real>;
};

template <class Names>
inline constexpr bool are_names = false;
template <std::size_t N>
inline constexpr bool are_names<const std::array<const char*, N>> = true;

/// A policy that names its buffers, and the numbers that it keeps for each layer, if any.
template <class P>
concept NamesBuffers = are_names<decltype(P::state)> &&(
    !requires { P::layer_state; } || requires { requires are_names<decltype(P::layer_state)>; });

template <class P, class Real>
concept HasRuleOfItsOwn = requires(const P& policy) {
  policy.template rule<Real>();
};
template <class Rule, std::size_t N, std::size_t... K>
constexpr auto rule_from(const std::array<HyperParameter, N>& all, std::index_sequence<K...>)
    -> decltype(Rule{all[K]...}) {
  return Rule{all[K]...};
}
template <class Rule, class Parameters>
concept IsMadeOf = requires(const Parameters& all) {
  rule_from<Rule>(all, std::make_index_sequence<std::tuple_size_v<Parameters>>{});
};
/// A policy that has the arithmetic for one element.
template <class P, class Real>
concept MakesRule = requires(const P& policy) {
  { policy.template rule<Real>() } -> std::same_as<typename P::template Rule<Real>>;
}
||
    (!HasRuleOfItsOwn<P, Real> &&
     requires(const P& policy) {
       requires IsMadeOf<typename P::template Rule<Real>,
                         std::remove_cvref_t<decltype(policy.hyper_parameters())>>;
     }) ||
    (!HasRuleOfItsOwn<P, Real> && !HasHyperParameters<P> && std::is_empty_v<typename P::template Rule<Real>>);

}  // namespace detail

/// Returns a policy's arithmetic for one element in type Real: the result of its rule<Real>(), or its Rule<Real> with
/// its hyper_parameters(), in their order, as members.
template <class Real, class P>
constexpr typename P::template Rule<Real> rule_of(const P& policy) {
  if constexpr (detail::HasRuleOfItsOwn<P, Real>) {
    return policy.template rule<Real>();
  } else if constexpr (detail::HasHyperParameters<P>) {
    const auto all = policy.hyper_parameters();
    return detail::rule_from<typename P::template Rule<Real>>(all, std::make_index_sequence<all.size()>{});
  } else {
    return {};
  }
}

}  // namespace terse
