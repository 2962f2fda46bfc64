// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "terse/error_feedback/concept.hpp"
#include "terse/momentum_correction/concept.hpp"
#include "terse/momentum_correction/mixing_rule.hpp"
#include "terse/preconditioner/concept.hpp"
#include "terse/topology/concept.hpp"

namespace terse {

/// The slot of an optimizer that a policy fills.
enum class PolicyKind {
  none,
  momentum_correction,
  preconditioner,
  compressor,
  error_feedback,
  topology,
  mixing_rule,
  local_direction,
  weight_decay,
  graph,
  inside,
  schedule,
  block,
  gather
};

namespace detail {

/// Returns the kind of a policy, recognized by the one member that no other kind has. The kind's check_...() reports other
/// missing members.
template <class P>
constexpr PolicyKind kind_of() {
  if constexpr (HasBrokenFacts<P>)
    return PolicyKind::none;
  else if constexpr (StatesFacts<P, CorrectionFacts>)
    return PolicyKind::momentum_correction;
  else if constexpr (StatesFacts<P, PreconditionerFacts>)
    return PolicyKind::preconditioner;
  else if constexpr (StatesFacts<P, MixingFacts>)
    return PolicyKind::mixing_rule;
  else if constexpr (StatesFacts<P, DirectionFacts>)
    return PolicyKind::local_direction;
  else if constexpr (requires { P::lossless; })
    return PolicyKind::compressor;
  else if constexpr (requires { P::corrects; })
    return PolicyKind::error_feedback;
  else if constexpr (requires { P::recompresses; })
    return PolicyKind::topology;
  else if constexpr (requires { P::coupled; })
    return PolicyKind::weight_decay;
  else if constexpr (requires { P::regular; })
    return PolicyKind::graph;
  else if constexpr (requires { P::talks; })
    return PolicyKind::inside;
  else if constexpr (requires { P::late; })
    return PolicyKind::schedule;
  else if constexpr (requires { P::filters; })
    return PolicyKind::block;
  else if constexpr (requires { P::gathers; })
    return PolicyKind::gather;
  else
    return PolicyKind::none;
}

}  // namespace detail

/// A list of policies in any order.
template <class... Ps>
struct Policies {};

namespace detail {

template <PolicyKind K, class Default, class... Ps>
struct Find {
  using type = Default;
};
template <PolicyKind K, class Default, class P, class... Ps>
struct Find<K, Default, P, Ps...> {
  using type = std::conditional_t<kind_of<P>() == K, P, typename Find<K, Default, Ps...>::type>;
};
template <PolicyKind K, class... Ps>
constexpr int count_of = (0 + ... + (kind_of<Ps>() == K ? 1 : 0));

template <PolicyKind... Kinds>
constexpr bool is_one_of(PolicyKind kind) {
  return ((kind == Kinds) || ...);
}

/// Checks whether this kind is one of `kinds` and is not in Taken.
template <PolicyKind... Taken, class... Kinds>
constexpr bool is_left(PolicyKind kind, Kinds... kinds) {
  return ((kind == kinds) || ...) && !is_one_of<Taken...>(kind);
}

/// False for a policy whose error has been reported by the compiler, or is reported by the policy's own
/// static_assert.
template <class P>
inline constexpr bool is_sound =
    has_sound_parts<P> && !HasBrokenFacts<P> && !is_quantizer<P> && !is_selection<P>;

/// Reports a missing member of one policy with a readable static_assert, before other policies are chosen by its traits.
template <class P>
constexpr bool check_kind() {
  constexpr PolicyKind kind = kind_of<P>();
  if constexpr (!is_sound<P>)
    return is_part_of_compressor<P>() && false;
  else if constexpr (kind == PolicyKind::momentum_correction)
    return check_momentum_correction<P>();
  else if constexpr (kind == PolicyKind::preconditioner)
    return check_preconditioner<P>();
  else if constexpr (kind == PolicyKind::mixing_rule)
    return check_mixing_rule<P>();
  else if constexpr (kind == PolicyKind::local_direction)
    return check_local_direction<P>();
  else if constexpr (kind == PolicyKind::compressor)
    return check_compressor<P>();
  else if constexpr (kind == PolicyKind::error_feedback)
    return check_error_feedback<P>();
  else if constexpr (kind == PolicyKind::topology)
    return check_topology<P>();
  return true;
}

/// The policies given to an optimizer; check() reports errors with a readable static_assert.
template <class... Ps>
struct Given {
  template <PolicyKind... Taken>
  static constexpr bool check() {
    static_assert((... && (kind_of<Ps>() != PolicyKind::none || !is_sound<Ps>)),
                  "terse: one of this optimizer's arguments is not a policy: it has none of the members that "
                  "tell its kind, neither `facts` (of a MomentumCorrection, Preconditioner, MixingRule or "
                  "local direction) nor `lossless` (of a Compressor), `corrects` (ErrorFeedback), "
                  "`recompresses` (Topology), `coupled` (weight decay) or `regular` (graph)");
    static_assert(count_of<PolicyKind::momentum_correction, Ps...> <= 1,
                  "terse: this optimizer takes one MomentumCorrection and has been given two");
    static_assert(count_of<PolicyKind::preconditioner, Ps...> <= 1,
                  "terse: this optimizer takes one Preconditioner and has been given two");
    static_assert(count_of<PolicyKind::compressor, Ps...> <= 1,
                  "terse: this optimizer takes one Compressor and has been given two");
    static_assert(count_of<PolicyKind::error_feedback, Ps...> <= 1,
                  "terse: this optimizer takes one ErrorFeedback and has been given two");
    static_assert(count_of<PolicyKind::topology, Ps...> <= 1,
                  "terse: this optimizer takes one Topology and has been given two");
    static_assert(count_of<PolicyKind::mixing_rule, Ps...> <= 1,
                  "terse: this optimizer takes one MixingRule and has been given two");
    static_assert(count_of<PolicyKind::local_direction, Ps...> <= 1,
                  "terse: this optimizer takes one local direction and has been given two");
    static_assert(count_of<PolicyKind::weight_decay, Ps...> <= 1,
                  "terse: this optimizer takes one weight decay and has been given two");
    static_assert(count_of<PolicyKind::graph, Ps...> <= 1,
                  "terse: this optimizer takes one graph and has been given two");
    static_assert(count_of<PolicyKind::inside, Ps...> <= 1,
                  "terse: this optimizer takes one of Inside and has been given two");
    static_assert(count_of<PolicyKind::schedule, Ps...> <= 1,
                  "terse: this optimizer takes one schedule of meetings and has been given two");
    static_assert(count_of<PolicyKind::block, Ps...> <= 1,
                  "terse: this optimizer takes one of Block and has been given two");
    static_assert(count_of<PolicyKind::gather, Ps...> <= 1,
                  "terse: this optimizer takes one GatherBy and has been given two");
    constexpr bool mixes = is_one_of<Taken...>(PolicyKind::weight_decay);
    constexpr bool mixing_here =
        !mixes && (... || is_left<Taken...>(kind_of<Ps>(), PolicyKind::mixing_rule,
                                            PolicyKind::local_direction, PolicyKind::weight_decay));
    constexpr bool means_there =
        mixes && (... || is_left<Taken...>(kind_of<Ps>(), PolicyKind::momentum_correction,
                                           PolicyKind::preconditioner));
    static_assert(
        !mixing_here,
        "terse: a MixingRule, a local direction and a weight decay are for methods that mix with "
        "neighbours, and this optimizer takes means over all ranks: write ParameterMixing<...> with them");
    static_assert(
        !means_there,
        "terse: a MomentumCorrection and a Preconditioner are for means over all ranks: write "
        "Averaging<...> with them, or give this method, which mixes with neighbours, a MixingRule or a local "
        "direction such as MomentumDirection");
    static_assert(
        mixing_here || means_there || (is_one_of<PolicyKind::none, Taken...>(kind_of<Ps>()) && ...),
        "terse: this named optimizer fixes a policy of this kind and takes no other: see its documentation "
        "for the kinds that it takes; Averaging<...> and ParameterMixing<...> take one of every kind");
    return (... && check_kind<Ps>());
  }
};

/// A placeholder for an optimizer whose policies don't fit, after the error has been reported.
struct Misused {};
template <>
inline constexpr bool has_sound_parts<Misused> = false;

/// Of<Ps...>, or Misused.
template <bool Sound, template <class...> class Of, class... Ps>
struct Make {
  using type = Misused;
};
template <template <class...> class Of, class... Ps>
struct Make<true, Of, Ps...> {
  using type = Of<Ps...>;
};

/// The policy of kind K among these, otherwise the default.
template <PolicyKind K, class Default, class... Ps>
using PickPolicy = typename Find<K, Default, Ps...>::type;

}  // namespace detail

/// The kinds that an optimizer takes, in the order of its template's parameters.
template <PolicyKind... Kinds>
struct Takes {};

}  // namespace terse
