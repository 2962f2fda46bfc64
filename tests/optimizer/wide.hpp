// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/device.hpp"
#include "terse/device/emulated.hpp"
#include "terse/terse.hpp"

// Whether a recipe's sweeps run by the wide mapping of grid executors, asked of the compiler alone: functors that lose their
// streams give the same bits, only slower.

namespace terse::test {

using Wide = executor::emulated;

template <class Incoming, class F>
inline constexpr bool is_wide = detail::RunsWide<detail::Arriving<Incoming>, F>;
template <class F>
inline constexpr bool is_wide_alone = is_wide<NoPackets, detail::WithoutMask<F>>;

template <class F>
using ViewOf = decltype(std::declval<typename F::template State<Wide>&>().view());

/// What comes in of compressor C.
template <class C>
struct IncomingOf {
  using type = ArrivedSums;
};
template <class C>
requires requires { typename C::Code; }
struct IncomingOf<C> {
  using type = Packets<typename C::Code>;
};

/// A message, and a mean's consumer.
template <class F>
inline constexpr bool says_wide = is_wide<NoPackets, detail::Compensate<F, NoErrorFeedback::View>>;
template <class F>
inline constexpr bool takes_wide =
    is_wide<detail::OneEach<Dense::Code>, detail::Gated<detail::Deliver<F, detail::AsItIs>>>;

/// Vector K of a recipe that mixes: what it says, and what becomes of the differences.
template <int K, class M, class P, class C, class F, class Decay>
constexpr bool vector_is_wide(const recipes::ParameterMixingOf<M, P, C, F, Decay>&) {
  using Recipe = recipes::ParameterMixingOf<M, P, C, F, Decay>;
  using Rule = typename M::template Rule<float>;
  using View = detail::MixingView<Numbers<>, static_cast<int>(M::state.size()), Recipe::scalars - 2, Decay,
                                  Recipe::blind>;
  using Says = decltype(std::declval<detail::OutgoingVectors<Rule, View>>().vector(Vector<K>{}));
  using Becomes = decltype(std::declval<detail::UpdateVectors<Rule, View, M::facts.moves_by_packet>>().vector(
      Vector<K>{}));
  using Outcome = decltype(Becomes::compressed);
  using Incoming = typename IncomingOf<C>::type;
  bool wide = is_wide<NoPackets, detail::Exact<decltype(Says::dense)>> &&
              is_wide<Differences<Dense::Code>, detail::Gated<detail::MixExact<decltype(Becomes::dense)>>> &&
              takes_wide<detail::UpdateByMean<Rule, View, K>>;
  if constexpr (M::facts.combines_first) wide = wide && is_wide_alone<detail::Adapt<Rule, View>>;
  if constexpr (K > 0)
    wide = wide && is_wide_alone<detail::KeepOutgoing<Rule, View, K>> && says_wide<detail::KeptOutgoing>;
  if constexpr (Traits<C>::keyed)
    wide = wide && is_wide<NoPackets, detail::Gated<detail::MixKept<Outcome>>>;
  else if constexpr (!C::lossless)
    wide = wide && is_wide<NoPackets, detail::Compensate<decltype(Says::compressed), ViewOf<F>>> &&
           is_wide<Incoming, detail::Gated<detail::MixDecoded<Outcome, ViewOf<F>>>>;
  if constexpr (!C::lossless && M::facts.moves_by_packet)
    wide = wide && is_wide<Incoming, detail::Gated<detail::TakeOwn<Outcome>>>;
  return wide;
}
template <class M, class P, class C, class F, class Decay>
constexpr bool mixes_wide(const recipes::ParameterMixingOf<M, P, C, F, Decay>& recipe) {
  if constexpr (M::facts.vectors == 2)
    return vector_is_wide<0>(recipe) && vector_is_wide<1>(recipe);
  else
    return vector_is_wide<0>(recipe);
}

/// The second sweep over layers, by the rules of one stage or of two.
template <class OfSegment, class... S, std::size_t... K>
constexpr bool measures_wide(Statistics<S...>, std::index_sequence<K...>) {
  return (is_wide<NoPackets, detail::AsSample<detail::MeasureStep<static_cast<int>(K), OfSegment>>> && ...);
}
template <class OfSegment, class Rules>
constexpr bool layers_are_wide() {
  using Measures = typename Rules::measures;
  return is_wide<NoPackets, detail::Gated<detail::LayerDescend<OfSegment>>> &&
         measures_wide<OfSegment>(Measures{}, std::make_index_sequence<Measures::count>{});
}
template <class Recipe>
constexpr bool descends_wide() {
  using Pair = typename terse::detail::Composed<Recipe>::Pair;
  using First = typename Pair::template FirstRules<Numbers<>>;
  using Second = typename Pair::template SecondRules<Numbers<>>;
  static_assert(Pair::layer_wise);
  return layers_are_wide<detail::OneRule<First>, First>() &&
         layers_are_wide<detail::OfSegment<First, Second>, First>();
}

/// What the outer rule of a local method says, and how the mean enters the model.
template <class Recipe>
constexpr bool meets_wide() {
  using Rule = typename terse::detail::Composed<Recipe>::Rule;
  using X = ParameterRef<float>;
  constexpr OuterBuffers own{};
  bool wide = says_wide<decltype(std::declval<const Rule&>().message(X{}, own))>;
  if constexpr (requires(const Rule& rule) { rule.whole_message(X{}, own); })
    wide = wide && says_wide<decltype(std::declval<const Rule&>().whole_message(X{}, own))>;
  if constexpr (requires(const Rule& rule) { rule.land(own, nullptr, 0); })
    wide = wide && takes_wide<decltype(std::declval<const Rule&>().land(own, nullptr, 0))> &&
           is_wide_alone<decltype(std::declval<const Rule&>().merge(X{}, own, nullptr, 0))>;
  else
    wide = wide && takes_wide<decltype(std::declval<const Rule&>().arrive(X{}, own, nullptr, 0))>;
  return wide;
}

}  // namespace terse::test
