// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "terse/preconditioner/concept.hpp"
#include "terse/preconditioner/layer_statistic.hpp"
#include "terse/preconditioner/sequence.hpp"

// Layer-wise parts of Averaging and Staged: the second sweep of layer-wise preconditioners, and the balance of momentum
// corrections.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Places, and the positions of the policy's numbers among those kept for each layer.
template <class Places, int... Numbers>
struct LayerPlaces : Places {
  TERSE_HD static constexpr int layer([[maybe_unused]] int k) {
    int place = 0;
    [[maybe_unused]] int at = 0;
    ((place = at++ == k ? Numbers : place), ...);
    return place;
  }
};

/// The statistics that a preconditioner's rule measures for each layer.
template <class Rule>
struct MeasuresOf {
  using type = Statistics<>;
};
template <class Rule>
requires requires { typename Rule::measures; }
struct MeasuresOf<Rule> {
  using type = typename Rule::measures;
};

/// One layer, as passed to the preconditioner with these Places, see Preconditioner.
template <class View, class Places>
struct AveragingLayer {
  const View& view;
  const LayerTable* tables;
  index_t layer;

  TERSE_HD float measured(int k) const { return tables[k][layer]; }
  TERSE_HD float decay() const { return view.rates[layer].weight_decay; }
  TERSE_HD index_t rows() const { return view.shapes[layer].shape.rows; }
  TERSE_HD index_t columns() const { return view.shapes[layer].shape.columns; }
  TERSE_HD bool hidden() const { return view.shapes[layer].hidden; }
  TERSE_HD float& operator[](int k) const {
    return view.layers[static_cast<std::size_t>(Places::layer(k))][layer];
  }
};

/// Norms and sizes of all layers when the second stage begins.
struct LayerNorms {
  LayerTable norms;
  const index_t* elements;
  const std::uint8_t* dense;
  index_t count;
};
/// All layers as seen by the momentum correction with these Places, see MomentumCorrection.
template <class View, class Places>
struct AveragingLayers {
  const View& view;
  const LayerNorms& known;

  TERSE_HD index_t count() const { return known.count; }
  TERSE_HD index_t elements(index_t layer) const { return known.elements[layer]; }
  TERSE_HD float norm(index_t layer) const {
    return known.dense[layer] == 0 && known.norms.has(layer) ? known.norms[layer] : 0.0F;
  }
  TERSE_HD float& operator()(index_t layer, int k) const {
    return view.layers[static_cast<std::size_t>(Places::layer(k))][layer];
  }
};

/// The rules of a layer: First's if it is dense, otherwise Second's.
template <class First, class Second>
struct OfSegment {
  First first;
  Second second;
  const std::uint8_t* dense;
  bool is_second = false;

  TERSE_HD void enter(const Piece& piece) {
    is_second = dense[piece.segment] == 0;
    first.enter(piece);
    second.enter(piece);
  }
  /// Returns the arrays that either rule accesses in the second sweep, through the view of the first.
  template <Access A>
  TERSE_HD auto streams() {
    return first.view.template streams<A, First::in_second_sweep | Second::in_second_sweep>();
  }
  /// Calls `act` with the rules of the layer that was entered.
  template <class Act>
  TERSE_HD TERSE_INLINE auto operator()(const Act& act) const {
    if (!is_second) return act(first);
    Second rules = second;
    rules.view = first.view;  // has entered the same piece, and may point to copies of its elements
    return act(rules);
  }
  template <class Act>
  TERSE_HD auto of(index_t layer, const Act& act) const {
    return dense[layer] == 0 ? act(second) : act(first);
  }
};
/// The rules of a layer if one stage's rules apply to all layers.
template <class Rules>
struct OneRule {
  Rules first;
  TERSE_HD void enter(const Piece& piece) { first.enter(piece); }
  template <Access A>
  TERSE_HD auto streams() {
    return first.view.template streams<A, Rules::in_second_sweep>();
  }
  template <class Act>
  TERSE_HD TERSE_INLINE auto operator()(const Act& act) const {
    return act(first);
  }
  template <class Act>
  TERSE_HD auto of(index_t, const Act& act) const {
    return act(first);
  }
};

template <int K>
struct MeasuredBy {
  const float* steps;
  index_t i;
  template <class Rules>
  TERSE_HD TERSE_INLINE float operator()(const Rules& rules) const {
    if constexpr (K < Rules::measures::count)
      return rules.preconditioner.measured(K, rules.to_preconditioner(i), steps[i]);
    else
      return 0;
  }
};
/// The samples of statistic K.
template <int K, class OfSegment>
struct MeasureStep {
  OfSegment rules;
  const float* steps;
  using StreamsOf = MeasureStep;
  TERSE_HD auto streams() {
    return rules.template streams<Access::reads>() + reads(rules.first.view.parameters.values) + reads(steps);
  }
  TERSE_HD void enter(const Piece& piece) { rules.enter(piece); }
  TERSE_HD TERSE_INLINE float operator()(const Piece&, index_t i) const {
    return rules(MeasuredBy<K>{steps, i});
  }
};

struct FactorBy {
  const LayerTable* tables;
  index_t layer;
  template <class Rules>
  TERSE_HD TERSE_INLINE float operator()(const Rules& rules) const {
    return rules.preconditioner_of(layer).factor(rules.to_layer(tables, layer));
  }
};
/// A placeholder for Next: no later stage observes the factors.
struct NoObserver {};
/// Computes the factor of each layer, which Next may observe. An element of its range is a layer.
template <class OfSegment, class Next, std::size_t Count>
struct ChooseFactors {
  OfSegment rules;
  Next next;
  std::array<LayerTable, Count> tables;
  float* factors;

  TERSE_HD void operator()(const Piece&, index_t layer, bool) const {
    bool measured = true;
    if constexpr (Count > 0) measured = tables[0].has(layer);
    factors[layer] = measured ? rules.of(layer, FactorBy{tables.data(), layer}) : 1.0F;
    if constexpr (requires { next.preconditioner.observe(next.to_layer(tables.data(), layer), 0.0F); })
      if (measured)
        next.preconditioner_of(layer).observe(next.to_layer(tables.data(), layer), factors[layer]);
  }
};

struct MovedBy {
  const float* steps;
  index_t i;
  float rate;
  template <class Rules>
  TERSE_HD TERSE_INLINE float operator()(const Rules& rules) const {
    if constexpr (Rules::hears_of_steps) {
      const auto own = rules.to_momentum(i);
      rules.momentum.stepped(own, !is_no_step(steps[i]));
      own.write_back();
    }
    const auto e = rules.to_preconditioner(i);
    if constexpr (requires { rules.preconditioner.move(e, 0.0F, 0.0F); }) {
      const float move = rules.preconditioner.move(e, steps[i], rate);
      e.write_back();
      return move;
    } else {
      return rate * (steps[i] + e.decay() * e.x());
    }
  }
};
/// The second sweep of a layer-wise step: updates the parameters.
template <class OfSegment>
struct LayerDescend {
  OfSegment rules;
  const float* steps;
  const float* factors;
  float rate = 0;
  using StreamsOf = LayerDescend;
  TERSE_HD auto streams() {
    return rules.template streams<Access::may_update>() + rules.first.view.parameters.streams() +
           reads(steps);
  }
  TERSE_HD void enter(const Piece& piece) {
    rules.enter(piece);
    rate = rules.first.view.rate.learning_rate * factors[piece.segment];
  }
  TERSE_HD void operator()(const Piece&, index_t i, bool) const {
    const auto& parameters = rules.first.view.parameters;
    const float x = parameters[i];
    parameters.set(i, x - rules(MovedBy{steps, i, rate}));
  }
};

/// The balance of all layers by the second stage's momentum correction. Runs over one element.
template <class Rules>
struct BalanceLayers {
  Rules rules;
  LayerNorms known;
  TERSE_HD void operator()(const Piece&, index_t) const { rules.momentum.balance(rules.to_layers(known)); }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// The memory of layer-wise preconditioners between the two sweeps.
template <Executor E, class Measured, class Sequence>
struct Layers;
template <Executor E, class... S, class Sequence>
struct Layers<E, Statistics<S...>, Sequence> {
  static constexpr std::size_t count = sizeof...(S);

  std::tuple<LayerStatistic<E, S>...> statistics;
  [[no_unique_address]] Orthogonalizer<E, Sequence> orthogonalizer;
  buffer<float, typename E::memory> steps, factors;
  Range elements, layers;  // constructed in advance: a step allocates nothing

  Layers(E executor, const Layout& layout, [[maybe_unused]] std::size_t least_dimensions)
      : statistics(LayerStatistic<E, S>(executor, layout, least_dimensions)...),
        orthogonalizer(executor, layout),
        steps(layout.size()),
        factors(static_cast<index_t>(layout.segments().size())),
        elements(layout.range()),
        layers(Layout::flat(factors.size()).range()) {}

  /// Takes the stored steps, unless the exchange has found an error.
  template <class X, class OfSegment, class Next>
  void step(E executor, const X& exchange, const OfSegment& rules, const Next& next) {
    orthogonalizer(executor, steps.data());
    measure(executor, rules, std::make_index_sequence<count>{});
    std::array<LayerTable, count> tables{};
    std::apply([&](const auto&... of) { tables = {of.table()...}; }, statistics);
    for_each(executor, layers, NoMask{}, NoPackets{},
             exchange.gated(ChooseFactors<OfSegment, Next, count>{rules, next, tables, factors.data()}));
    for_each(executor, elements, NoMask{}, NoPackets{},
             exchange.gated(LayerDescend<OfSegment>{rules, steps.data(), factors.data()}));
  }

 private:
  template <class OfSegment, std::size_t... K>
  void measure([[maybe_unused]] E executor, [[maybe_unused]] const OfSegment& rules,
               std::index_sequence<K...>) {
    (std::get<K>(statistics)
         .measure(executor, MeasureStep<static_cast<int>(K), OfSegment>{rules, steps.data()}),
     ...);
  }
};

/// The statistics of all layers for the second stage's momentum correction, measured once.
template <Executor E>
struct Balance {
  LayerStatistic<E> norms;
  buffer<index_t, typename E::memory> elements;
  Range one;

  Balance(E executor, const Layout& layout)
      : norms(executor, layout, 0),
        elements(static_cast<index_t>(layout.segments().size())),
        one(Layout::flat(elements.size() > 0 ? 1 : 0).range()) {
    std::vector<index_t> counts;
    for (const Segment& segment : layout.segments()) counts.push_back(segment.count);
    put(executor, view<const index_t>(counts.data(), elements.size()), out<E, index_t>(elements.all()));
  }
  template <class Rules>
  void settle(E executor, const Rules& rules, const float* values, const std::uint8_t* dense) {
    norms.measure(executor, Stored{values});
    for_each(executor, one,
             BalanceLayers<Rules>{rules, {norms.table(), elements.data(), dense, elements.size()}});
  }
};

}  // namespace detail

}  // namespace terse
