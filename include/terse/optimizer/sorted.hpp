// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "terse/compressor/dense.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/residual.hpp"
#include "terse/momentum_correction/heavy_ball.hpp"
#include "terse/optimizer/policies.hpp"
#include "terse/preconditioner/elementwise.hpp"
#include "terse/topology/all_gather.hpp"
#include "terse/topology/scatter_gather.hpp"

namespace terse {

namespace detail {

/// Checks whether a mean over all ranks can be computed by these policies.
template <class C, class F, class T>
constexpr bool check_means() {
  static_assert(T::exact,
                "terse: a mean over all ranks needs a topology that gives all the same; this one mixes with "
                "neighbours and is for ParameterMixing");
  return check_compressor<C>() && check_feedback<C, F>() && check_stages<C, F, T>();
}

/// Checks, for an optimizer that keeps no errors, that the feedback does not require the optimizer to keep a rank's own
/// errors.
template <class C, class F>
constexpr bool check_own_errors() {
  static_assert(
      C::unbiased || Traits<F>::unchecked || !requires { typename F::OfOwners; },
      "terse: OwnersResidual loses the unsent part of a rank's message, unless the optimizer keeps it, as "
      "CocktailSgd does. Use Residual");
  return true;
}

}  // namespace detail

/// The kinds of policies that determine the mean over all ranks.
using TakesMeans = Takes<PolicyKind::compressor, PolicyKind::error_feedback, PolicyKind::topology>;

namespace detail {

template <class C>
using FeedbackFor = std::conditional_t<!C::lossless && Traits<C>::tracks, Residual, NoErrorFeedback>;
template <class C, class F>
using TopologyFor =
    std::conditional_t<Traits<C>::single_stage || Traits<F>::single_stage, AllGather, ScatterGather>;

/// The policy of each kind: the policy that is given, otherwise the optimizer's default, otherwise the common default of
/// all optimizers.
template <class Defaults, class... Ps>
struct Choice;
template <class... Ds, class... Ps>
struct Choice<Policies<Ds...>, Ps...> {
  template <PolicyKind K, class Default>
  using Either = PickPolicy<K, PickPolicy<K, Default, Ds...>, Ps...>;
  using C = Either<PolicyKind::compressor, Dense>;
  using F = Either<PolicyKind::error_feedback, FeedbackFor<C>>;
  template <PolicyKind K>
  static constexpr auto of() {
    if constexpr (K == PolicyKind::momentum_correction)
      return std::type_identity<Either<K, NoMomentum>>{};
    else if constexpr (K == PolicyKind::preconditioner)
      return std::type_identity<Either<K, NoPreconditioner>>{};
    else if constexpr (K == PolicyKind::compressor)
      return std::type_identity<C>{};
    else if constexpr (K == PolicyKind::error_feedback)
      return std::type_identity<F>{};
    else
      return std::type_identity<Either<K, TopologyFor<C, F>>>{};
  }
};

/// Of with its policies, which it checks.
template <template <class...> class Of, class Taken, class Defaults, class... Ps>
struct SortAny;
template <template <class...> class Of, PolicyKind... Kinds, class Defaults, class... Ps>
struct SortAny<Of, Takes<Kinds...>, Defaults, Ps...> {
  static constexpr bool sound = Given<Ps...>::template check<Kinds...>();
  static_assert(sound || !(... && is_sound<Ps>));  // otherwise reported
  template <PolicyKind K>
  using Chosen = typename decltype(Choice<Defaults, Ps...>::template of<K>())::type;
  using type = typename Make<sound, Of, Chosen<Kinds>...>::type;
};

template <template <class...> class Of, class Taken, class Defaults, class... Ps>
struct Sort : SortAny<Of, Taken, Defaults, Ps...> {
  using Any = SortAny<Of, Taken, Defaults, Ps...>;
  static_assert(check_means<typename Any::template Chosen<PolicyKind::compressor>,
                            typename Any::template Chosen<PolicyKind::error_feedback>,
                            typename Any::template Chosen<PolicyKind::topology>>());
};

}  // namespace detail

/// Of<...> with one policy of each kind that it takes, in the order of its parameters. The given policies may be in any order.
/// For the others it takes the Defaults, and otherwise NoMomentum, NoPreconditioner, Dense, Residual (NoErrorFeedback if the
/// compressor does not track under it), and ScatterGather (AllGather if messages may be compressed only once). Named optimizers
/// are such lines:
///
///     template <class... Ps>
///     using Adam = Sorted<AdamOf, TakesMeans, Policies<>, Ps...>;
template <template <class...> class Of, class Taken, class Defaults, class... Ps>
using Sorted = typename detail::Sort<Of, Taken, Defaults, Ps...>::type;

}  // namespace terse
