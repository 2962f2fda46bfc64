// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/one_bit_lamb_functors.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/preconditioner/frozen_variance.hpp"

namespace terse::detail {

/// What changes in OneBitLamb.
template <Compressor C, Topology G, ErrorFeedback F, class P, Transport T, Executor E>
struct OneBitLambState {
  using Arena = buffer<float, typename E::memory>;

  DenseExchange<G, T, E> full;
  Exchange<C, F, G, T, E> compressed;
  Rates<E> rates;
  Arena momentum;
  Arena variance;  // of compressed segments, after the freeze: d
  Arena fresh;
  Freezing<E> freezing;
  LayerStatistic<E> weights, updates, plain;
  LayerStatistic<E, MaxAbs> ratios;
  Arena coefficients, frozen, factors, scales, roots;
  buffer<std::uint8_t, typename E::memory> excluded;
  Range all, segments, one;
  std::uint64_t balanced = 0;

  template <class Recipe>
  OneBitLambState(const Recipe& recipe, E executor, T& transport, const Layout& layout, bool clips)
      : full(executor, transport, layout, layout.range(), Dense{}, None{}, clips,
             dense_topology(recipe.topology)),
        compressed(executor, transport, layout, layout.range(), recipe.compressor, recipe.error_feedback,
                   false, recipe.topology),
        rates(layout),
        momentum(layout.size()),
        variance(layout.size()),
        fresh(layout.size()),
        freezing(executor, {recipe.preconditioner.freeze}, compressed.plan().whole.compressed, layout.size()),
        weights(executor, layout, 0),
        updates(executor, layout, 0),
        plain(executor, layout, 0),
        ratios(executor, layout, 0),
        coefficients(static_cast<index_t>(layout.segments().size())),
        frozen(coefficients.size()),
        factors(coefficients.size()),
        scales(coefficients.size()),
        roots(coefficients.size()),
        excluded(coefficients.size()),
        all(layout.range()),
        segments(Layout::flat(coefficients.size()).range()),
        one(Layout::flat(coefficients.size() > 0 ? 1 : 0).range()) {
    buffer<float> sizes(coefficients.size());
    buffer<std::uint8_t> dense(coefficients.size());
    for (std::uint8_t& flag : dense.all()) flag = 1;
    for (const Piece& piece : compressed.plan().whole.compressed.pieces()) dense[piece.segment] = 0;
    index_t s = 0;
    for (const Segment& segment : layout.segments())
      sizes[s++] = static_cast<float>(std::sqrt(static_cast<double>(segment.count)));
    put(executor, view<const float>(sizes.all()), roots.all());
    put(executor, view<const std::uint8_t>(dense.all()), out<E, std::uint8_t>(excluded.all()));
  }
  bool full_precision() const { return !freezing.frozen(); }
  StepBytes bytes_per_step() const { return {full.most_bytes(), compressed.most_bytes()}; }
  LambLayers layers() {
    return {coefficients.data(), frozen.data(), factors.data(), scales.data(), excluded.data()};
  }
  /// Not what the freeze has made of the variance.
  template <class Visit>
  void walk_buffers(Visit&& visit) {
    visit(momentum.all());
    if (!freezing.frozen()) visit(variance.all());
  }
  template <class Visit>
  void walk(Visit&& visit) {
    visit("momentum", momentum.all(), index_t{0});
    visit("variance", variance.all(), index_t{0});
    visit("fresh_variance", fresh.all(), index_t{0});
    visit("balanced", balanced);
    visit("frozen_coefficients", frozen.all(), index_t{0});
    visit("factors", factors.all(), index_t{0});
    visit("scales", scales.all(), index_t{0});
    freezing.walk(visit);
    compressed.walk(visit);
  }
  /// Once, before the first compressed step.
  void balance(E executor, float epsilon) {
    weights.measure(executor, Stored{momentum.data()});
    for_each(executor, one, BalanceScales{weights.table(), roots.data(), layers(), segments.elements()});
    for_each(executor, compressed.plan().whole.compressed,
             RestoreVariance{variance.data(), fresh.data(), epsilon});
    balanced = 1;
  }
};

}  // namespace terse::detail
