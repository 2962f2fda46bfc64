// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/error_feedback/none.hpp"
#include "terse/error_feedback/owners_residual.hpp"
#include "terse/optimizer/averaging.hpp"
#include "terse/optimizer/gradient_norm.hpp"
#include "terse/optimizer/local/inner.hpp"
#include "terse/optimizer/shares.hpp"
#include "terse/topology/given_means.hpp"
#include "terse/topology/owners.hpp"

namespace terse::detail {

/// The cut of the model: between segments for preconditioners that look at whole layers, otherwise anywhere.
template <class Inner>
constexpr CutBy cut_of() {
  using Pair = typename Composed<Inner>::Pair;
  return Pair::layer_wise || Pair::M1::facts.asks_hidden || Pair::P1::facts.asks_hidden ? CutBy::segment
                                                                                        : CutBy::element;
}

/// The recipe of the owners' step: Inner's composition over means that are already there.
template <class Composition>
struct OnGivenMeans;
template <class First, class Second, class C, class F, class P, class When>
struct OnGivenMeans<TwoStages<First, Second, C, F, P, When>> {
  using type = TwoStages<First, Second, C, F, GivenMeans, When>;
};
template <class Inner>
using OwnersRecipe = typename OnGivenMeans<Composed<Inner>>::type;
template <class Inner>
OwnersRecipe<Inner> owners_recipe(const Inner& inner, const GivenMeans& means = {}) {
  const auto& recipe = composed(inner);
  return {recipe.first, recipe.second, recipe.compressor, recipe.error_feedback, means, recipe.when};
}

/// The state of a Sharded on one rank.
template <class Inner, Compressor C, ErrorFeedback F, Compressor Back, Executor E>
struct ShardedState {
  using Arena = buffer<float, typename E::memory>;
  using Share = view<float, typename E::memory>;
  static constexpr CutBy cut = cut_of<Inner>();
  using BackFeedback = std::conditional_t<Back::lossless, NoErrorFeedback, OwnersResidual>;

  Shares<E> shares;
  Channel own;              // a world of this rank alone
  Arena means, parameters;  // shares
  Exchange<C, F, MeansToOwners<cut>, E> to_owners;
  Exchange<Back, BackFeedback, SpreadByOwners<cut>, E> to_all;
  typename OwnersRecipe<Inner>::template State<E> inner;
  bool masters = !Back::lossless;
  std::uint64_t adopted = 0;  // 1 if the masters are set
  Channel& transport;
  GradientNorm<E> norms;
  bool clips;

  template <class Recipe>
  TERSE_COLD ShardedState(const Recipe& recipe, E executor, Channel& transport_, const Layout& layout,
                          const Options& options)
      : ShardedState(recipe, executor, transport_, layout, options,
                     cut == CutBy::segment
                         ? 0
                         : slice_bytes_of(options.slice_bytes, transport_.in_stream_order(), !C::lossless)) {}

  bool full_precision() const { return C::lossless; }
  StepBytes bytes_per_step() const {
    const index_t bytes = to_owners.most_bytes() + to_all.most_bytes();
    if (!C::lossless) return {0, bytes};
    return {bytes + (clips ? norms.bytes(transport.size()) : 0), 0};
  }
  /// Keeps masters, for a model in 16 bits.
  void keep_masters() { masters = true; }

  template <class Visit>
  TERSE_COLD void walk(Visit&& visit) {
    if (masters) {
      visit("adopted", adopted);
      shares.visit_blocks(visit, "masters", Share(parameters.all()), 0);
    }
    to_owners.walk(visit);
    to_all.walk([&](const std::string& name, auto&&... rest) {
      visit("gather_" + name, std::forward<decltype(rest)>(rest)...);
    });
    walk_inner(inner, BlockByBlock<std::remove_reference_t<Visit>, E>{shares, visit});
  }

 private:
  template <class Recipe>
  TERSE_COLD ShardedState(const Recipe& recipe, E executor, Channel& transport_, const Layout& layout,
                          const Options& options, index_t slice_bytes)
      : shares(executor, transport_, layout, slice_bytes, cut),
        own(transport_.split(transport_.rank(), 0)),
        means(shares.layout().size()),
        parameters(shares.layout().size()),
        to_owners(executor, transport_, layout, layout.range(), recipe.compressor, recipe.error_feedback,
                  false, {means.data(), shares.on_host()}, slice_bytes),
        to_all(executor, transport_, layout, layout.range(), recipe.gather.compressor, {}, false, {},
               slice_bytes),
        // A mean of messages, each at most largest_finite, is at most that, too; of decoded packets it need not be.
        inner(owners_recipe(recipe.inner, {means.data(), C::lossless}), executor, own, shares.layout(),
              options_of_owners(options)),
        transport(transport_),
        norms(transport_, executor, shares.layout()),
        clips(options.clips()) {}

  static Options options_of_owners(Options options) {
    options.clip_norm = std::numeric_limits<float>::infinity();
    return options;
  }
};

}  // namespace terse::detail
