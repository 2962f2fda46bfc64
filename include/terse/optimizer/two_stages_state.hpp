// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "terse/optimizer/averaging_functors.hpp"
#include "terse/optimizer/averaging_layers.hpp"
#include "terse/optimizer/group_rules.hpp"
#include "terse/optimizer/stage_pair.hpp"
#include "terse/preconditioner/element_mask.hpp"

namespace terse::detail {

/// The state of two stages on one rank, and its memory.
template <class First, class Second, Compressor C, ErrorFeedback F, Topology P, class When, Executor E>
struct TwoStagesState {
  using Pair = StagePair<First, Second, C, F, When>;
  using Arena = buffer<float, typename E::memory>;

  /// The exchange of exact steps. On the host the memory and the channels of the first stage are released when it ends, and
  /// allocated again if one of its checkpoints is loaded later.
  std::optional<DenseExchange<P, E>> exact;
  index_t exact_bytes = 0;
  Channel& transport;
  index_t slice_bytes;
  bool clips, has_first_stage = false;
  std::optional<Exchange<C, F, P, E>> compressed;
  Rates<E> rates;
  buffer<LayerShape, typename E::memory> shapes;
  GroupedRules<E, decltype(First{}.rules()), decltype(Second{}.rules())> groups;
  std::array<Arena, Pair::names.count> buffers;
  std::array<Arena, Pair::layer_names.count> layer_numbers;
  std::optional<typename When::template Watch<E>> watch;
  std::optional<ElementMask<E>> masked;
  [[no_unique_address]] OptionalIf<Pair::layer_wise,
                                   Layers<E, AllMeasures<typename Pair::P1, typename Pair::P2>,
                                          typename SequenceOf<typename Pair::P1>::type>>
      layers;
  [[no_unique_address]] OptionalIf<Pair::balances, Balance<E>> balance;
  std::vector<std::uint8_t> dense_segments;  // 1 for segments that are never compressed
  buffer<std::uint8_t, typename E::memory> dense_table;
  std::uint64_t over = 0;  // 1 if the first stage is over
  /// For feedbacks that keep copies on all ranks; the copies differ after a round that throws. 2 in a compressed round, 1 in the
  /// exact round that restarts the copies after a failure, otherwise 0.
  std::uint64_t torn = 0;

  template <class Recipe>
  TERSE_COLD TwoStagesState(const Recipe& recipe, E executor, Channel& transport_, const Layout& layout,
                            const Options& options)
      : transport(transport_),
        slice_bytes(options.slice_bytes),
        clips(options.clips()),
        rates(layout),
        shapes(layer_shapes<E>(executor, layout)),
        groups(executor, layout) {
    if constexpr (requires { recipe.when.skipped(); }) over = recipe.when.skipped() && !Pair::seeds ? 1 : 0;
    if (!Pair::compresses || over == 0) make_exact(executor, layout, recipe.topology);
    if constexpr (Pair::compresses) {
      compressed.emplace(executor, transport, layout, layout.range(), recipe.compressor,
                         recipe.error_feedback, false, recipe.topology, slice_bytes);
      const Range& range = compressed->compressed();
      watch.emplace(recipe.when, executor, range);
      dense_segments.assign(layout.segments().size(), 1);
      for (const Piece& piece : range.pieces()) dense_segments[static_cast<std::size_t>(piece.segment)] = 0;
      if constexpr (Pair::carries) {
        masked.emplace(executor, range, layout.size(),
                       MaskedElements{layout, options.most_masked,
                                      "leave these elements out (Optimizer::mask) or these segments "
                                      "uncompressed (compress = false), or "});
        if (over != 0) masked->set_all();
      }
    }
    const auto segments = static_cast<index_t>(layout.segments().size());
    if constexpr (Pair::layer_wise) layers.emplace(executor, layout, Pair::P1::facts.least_dimensions);
    if constexpr (Pair::balances) balance.emplace(executor, layout);
    if constexpr (Pair::compresses && (Pair::layer_wise || Pair::balances || Pair::reseeds)) {
      dense_table = buffer<std::uint8_t, typename E::memory>(segments);
      put(executor, view<const std::uint8_t>(dense_segments.data(), segments),
          out<E, std::uint8_t>(dense_table.all()));
    }
    for (Arena& numbers : layer_numbers) numbers = Arena(segments);
    for (Arena& elements : buffers) elements = Arena(layout.size());
  }
  /// Allocates the exchange of exact steps. Collective.
  TERSE_COLD void make_exact(E executor, const Layout& layout, const P& carrier) {
    exact.emplace(executor, transport, layout, layout.range(), Dense{}, NoErrorFeedback{}, clips,
                  dense_topology(carrier), slice_bytes);
    exact_bytes = exact->most_bytes();
    has_first_stage = true;
  }
  bool full_precision() const { return averages_exactly() || torn != 0; }
  /// Checks whether the next step clips the mean: this is so in full precision, unless the step restarts the copies for local
  /// momentum. A step that restarts them averages messages of gradients that have already been clipped.
  bool clips_mean() const { return full_precision() && !(Pair::reseeds && torn != 0); }
  /// Checks whether the next step differs in kind from the steps after it.
  bool recovers() const { return torn != 0 || (averages_exactly() && !exact); }
  StepBytes bytes_per_step() const {
    return {exact_bytes,
            compressed ? compressed->most_bytes(Pair::template SecondRules<Numbers<>>::listens) : 0};
  }
  /// Checks whether the current step averages exactly: like full_precision(), but for a call within a step.
  bool averages_exactly() const { return !Pair::compresses || over == 0 || torn == 1; }
  /// Checks whether this step averages messages exactly, after a failed step.
  bool starts_anew() const { return Pair::reseeds && torn == 1; }
  /// Takes a user's mask and returns its digest. Until the second stage begins, a bit is set for each masked element.
  TERSE_COLD std::uint64_t leave_out(const std::uint8_t* elements) requires(Pair::carries) {
    masked->set(InUsersMask{elements, over != 0});
    return masked->digest();
  }
  MaskedElements& masked_elements() requires(Pair::carries) { return masked->masked; }
  /// Checks whether compressed steps mask elements.
  bool masks() const {
    if constexpr (Pair::carries) return !masked->full();
    return false;
  }
  /// Visits the buffers of n floats that the policies keep, except those that have another meaning in the second stage.
  template <class Visit>
  void walk_buffers(Visit&& visit) {
    for (std::size_t k = 0; k < buffers.size(); ++k)
      if (over == 0 || !Pair::P2::facts.continues_first_stage ||
          !keeps<typename Pair::P2>(Pair::names.names[k]))
        visit(buffers[k].all());
  }
  template <class Visit>
  void walk_shared(Visit&& visit) {
    for (std::size_t k = 0; k < buffers.size(); ++k)
      if (!Pair::local_momentum || !keeps<typename Pair::M2>(Pair::names.names[k]))
        visit(Pair::names.names[k], buffers[k].all());
  }
  /// See recipe.hpp: what the stage's start derives from the mean of all ranks.
  template <class Visit>
  TERSE_COLD void walk_derived(const Visit& visit) {
    for (std::size_t k = 0; k < layer_numbers.size(); ++k)
      visit(Pair::layer_names.names[k], layer_numbers[k].all(), index_t{0});
    if constexpr (Pair::carries) masked->walk(visit);
    if constexpr (Pair::compresses) watch->walk(visit);
  }
  template <class Visit>
  TERSE_COLD void walk(Visit&& visit) {
    for (std::size_t k = 0; k < buffers.size(); ++k)
      visit(Pair::names.names[k], buffers[k].all(), index_t{0});
    for (std::size_t k = 0; k < layer_numbers.size(); ++k)
      visit(Pair::layer_names.names[k], layer_numbers[k].all(), index_t{0});
    if constexpr (Pair::compresses) {
      visit("compresses", over);
      if constexpr (Pair::seeds) visit("torn", torn);
      if constexpr (Pair::carries) masked->walk(visit);
      watch->walk(visit);
      compressed->walk(visit);
    }
  }

  /// Returns the view that is the argument of a step's functors.
  template <class N>
  typename Pair::template View<N> view_of(const StepInput<E, N>& input) {
    typename Pair::template View<N> view{input.parameters, input.gradients,  {}, {},
                                         rates.table(),    input.context.now};
    for (std::size_t k = 0; k < buffers.size(); ++k) view.buffers[k] = buffers[k].data();
    for (std::size_t k = 0; k < layer_numbers.size(); ++k) view.layers[k] = layer_numbers[k].data();
    view.groups = groups.places();
    view.shapes = shapes.data();
    return view;
  }
  /// Returns the mask of the elements that take part in a compressed step.
  Mask<typename E::memory> mask() const {
    if constexpr (Pair::carries)
      return masked->mask();
    else
      return {};
  }
};

}  // namespace terse::detail
