// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

#include "terse/core/config.hpp"

namespace terse {

/// What a rule of methods that average may ask of an element, without an element behind it: concepts and check_...()
/// try rules on it. Nothing here is defined.
template <class Real>
struct SomeElement {
  TERSE_HD Real x() const;                 ///< the parameter
  TERSE_HD Real g() const;                 ///< this rank's gradient, scaled
  TERSE_HD Real rate() const;              ///< learning rate
  TERSE_HD Real decay() const;             ///< weight decay
  TERSE_HD Real scalar(int k) const;       ///< of this step, see at_step
  TERSE_HD Real& operator[](int k) const;  ///< buffer k of the policy's `state`
};

/// The same for rules that mix with neighbours.
template <class Real>
struct SomeMixingElement : SomeElement<Real> {
  TERSE_HD Real held() const;   ///< the parameter before decoupled weight decay
  TERSE_HD Real ratio() const;  ///< this step's learning rate over the last one's, 0 after 0
};

namespace detail {

template <class A, class Value>
inline constexpr bool is_array_of = false;
template <class Value, std::size_t N>
inline constexpr bool is_array_of<std::array<Value, N>, Value> = true;

/// What at_step returns.
template <class A, class Real>
concept ScalarsOf = is_array_of<A, Real>;

/// at_step(t), where a rule has it. A member that can't be called as it is meant would be passed over in silence; so it is
/// with the other optional ones.
template <class Rule, class Real>
concept AtStepFits = !requires {
  &Rule::at_step;
}
|| requires(const Rule& rule) {
  { rule.at_step(1) } -> ScalarsOf<Real>;
};

/// The names of a policy's buffers.
template <class P>
concept NamesBuffers = requires {
  requires std::is_const_v<decltype(P::state)>;
  requires is_array_of < std::remove_const_t<decltype(P::state)>,
  const char* > ;
};

/// A policy's arithmetic for one element.
template <class P, class Real>
concept MakesRule = requires(const P& policy) {
  { policy.template rule<Real>() } -> std::same_as<typename P::template Rule<Real>>;
};

}  // namespace detail

}  // namespace terse
