// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "terse/error_feedback/concept.hpp"
#include "terse/optimizer/averaging_rules.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/optimizer/stage.hpp"

namespace terse::detail {

/// Two stages combined at compile time: the buffers and scalars that their policies share, their rules for these, and the
/// properties that determine the state of a run.
template <class First, class Second, Compressor C, ErrorFeedback F, class When>
struct StagePair {
  using M1 = typename First::Momentum;
  using P1 = typename First::Preconditioner;
  using M2 = typename Second::Momentum;
  using P2 = typename Second::Preconditioner;

  /// True for an Averaging, which has one stage and a warm-up.
  static constexpr bool one_stage = std::is_same_v<When, WarmUp>;
  static_assert(check_stages<First, Second, F, one_stage>());

  static constexpr bool compresses = !C::lossless;
  /// Buffers with equal names are one buffer.
  static constexpr auto names = all_names<compresses>(M1::state, P1::state, M2::state, P2::state);
  static constexpr auto layer_names = all_names<compresses>(layer_state_of<M1>(), layer_state_of<P1>(),
                                                            layer_state_of<M2>(), layer_state_of<P2>());
  template <class Policy>
  static constexpr int scalars_of_policy = scalars_of_rule<typename Policy::template Rule<float>>();
  /// The first place of each policy's scalars in StepScalars::own.
  static constexpr std::array<int, 4> first_scalar{
      0, scalars_of_policy<M1>, scalars_of_policy<M1> + scalars_of_policy<P1>,
      scalars_of_policy<M1> + scalars_of_policy<P1> + scalars_of_policy<M2>};

  /// Number of places of StepScalars::own that the rules take.
  static constexpr int scalars = first_scalar[3] + scalars_of_policy<P2>;
  static_assert(scalars <= StepScalars::most_own, "terse: the rules of a step have room for 14 scalars");

  template <class N>
  using View = AveragingView<N, names.count, scalars, layer_names.count>;
  template <class Policy, int Scalar, std::size_t... K, std::size_t... L>
  static constexpr LayerPlaces<Places<Scalar, names.find(Policy::state[K])...>,
                               layer_names.find(layer_state_of<Policy>()[L])...>
      places(std::index_sequence<K...>, std::index_sequence<L...>);
  template <class Policy, int Scalar>
  using PlacesOf =
      decltype(places<Policy, Scalar>(std::make_index_sequence<Policy::state.size()>{},
                                      std::make_index_sequence<layer_state_of<Policy>().size()>{}));
  template <class M, class P, class N, int MomentumScalar, int PreconditionerScalar>
  using RulesOf = Rules<typename M::template Rule<float>, typename P::template Rule<float>, View<N>,
                        PlacesOf<M, MomentumScalar>, PlacesOf<P, PreconditionerScalar>,
                        M::facts.rests_at_zero && P::facts.rests_at_zero>;
  /// The rules of a stage for one element, with N's numbers.
  template <class N>
  using FirstRules = RulesOf<M1, P1, N, first_scalar[0], first_scalar[1]>;
  template <class N>
  using SecondRules = RulesOf<M2, P2, N, first_scalar[2], first_scalar[3]>;

  /// True if steps are layer-wise, so that a second sweep takes them.
  static constexpr bool layer_wise = P1::facts.layer_wise;
  /// True if the second stage starts from state of the first, and elements may be masked at the change.
  static constexpr bool carries = compresses && !one_stage;
  /// True if copies of the error feedback start from an exact round.
  static constexpr bool seeds = compresses && starts_exactly<F>();
  /// True if momentum differs between ranks in compressed steps. Then the gradients' mean must not be added to it in
  /// any step.
  static constexpr bool local_momentum = compresses && SecondRules<Numbers<>>::says && !M2::facts.common;
  /// True if, in the round that restarts the copies after a failed step, messages must be averaged instead of
  /// gradients.
  static constexpr bool reseeds = seeds && local_momentum;
  /// True if the second stage balances layers when it begins.
  static constexpr bool balances =
      carries && requires(const typename M2::template Rule<float>& rule, const SomeLayers<float>& layers) {
    rule.balance(layers);
  };
};

}  // namespace terse::detail
