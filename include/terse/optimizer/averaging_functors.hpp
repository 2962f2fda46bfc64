// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "terse/momentum_correction/concept.hpp"
#include "terse/optimizer/averaging_layers.hpp"
#include "terse/preconditioner/concept.hpp"
#include "terse/preconditioner/parameter_ref.hpp"
#include "terse/preconditioner/rates.hpp"

// The functors of Averaging and Staged: rules at work on one element of a step.

namespace terse::detail {

/// Names, each once, in the order of their first mention: buffers of one name are one buffer.
template <std::size_t Most>
struct Names {
  std::array<const char*, Most> names{};
  int count = 0;

  constexpr int find(std::string_view name) const {
    for (int k = 0; k < count; ++k)
      if (name == names[static_cast<std::size_t>(k)]) return k;
    return -1;
  }
  template <class State>
  constexpr void add(const State& state) {
    for (const char* name : state)
      if (find(name) < 0) names[static_cast<std::size_t>(count++)] = name;
  }
};

/// Where a policy's scalars begin among those of a step, and which of its buffers are the policy's: as a type, which nvcc
/// can name, of numbers, which it can compute with on a device.
template <int Scalar, int... Buffers>
struct Places {
  static constexpr int scalar = Scalar;
  TERSE_HD static constexpr int buffer([[maybe_unused]] int k) {
    int place = 0;
    [[maybe_unused]] int at = 0;
    ((place = at++ == k ? Buffers : place), ...);
    return place;
  }
};

}  // namespace terse::detail

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// What the rules of a step share.
template <class N, int Buffers, int Scalars, int Layers>
struct AveragingView {
  ParameterRef<typename N::parameter> parameters;
  const typename N::gradient* gradients;
  std::array<float*, Buffers == 0 ? 1 : Buffers> buffers;
  std::array<float*, Layers == 0 ? 1 : Layers> layers;
  const Rate* rates;
  const StepScalars* now;
  Rate rate{};
  float scale = 1;
  std::array<float, Scalars == 0 ? 1 : Scalars> scalars{};
  std::array<float, Layers == 0 ? 1 : Layers> of_layer{};

  TERSE_HD void enter(const Piece& piece) {
    rate = rates[piece.segment];
    scale = now->gradient_scale;
    for (int k = 0; k < Scalars; ++k)
      scalars[static_cast<std::size_t>(k)] = now->own[static_cast<std::size_t>(k)];
    for (int k = 0; k < Layers; ++k)
      of_layer[static_cast<std::size_t>(k)] = layers[static_cast<std::size_t>(k)][piece.segment];
  }
};

/// One element as the policy with these Places sees it, see MomentumCorrection.
template <class View, class Places>
struct AveragingElement {
  const View& view;
  index_t i;

  TERSE_HD float x() const { return view.parameters[i]; }
  TERSE_HD float g() const { return widened(view.gradients[i]) * view.scale; }
  TERSE_HD float rate() const { return view.rate.learning_rate; }
  TERSE_HD float decay() const { return view.rate.weight_decay; }
  TERSE_HD float& operator[](int k) const {
    return view.buffers[static_cast<std::size_t>(Places::buffer(k))][i];
  }
  TERSE_HD float scalar(int k) const { return view.scalars[static_cast<std::size_t>(Places::scalar + k)]; }
  TERSE_HD float layer(int k) const { return view.of_layer[static_cast<std::size_t>(Places::layer(k))]; }
};

/// A momentum correction and a preconditioner that work on one View.
template <class Momentum, class Preconditioner, class View_, class MomentumPlaces, class PreconditionerPlaces>
struct Rules {
  using View = View_;
  using measures = typename MeasuresOf<Preconditioner>::type;

  Momentum momentum;
  Preconditioner preconditioner;
  View view;

  TERSE_HD void enter(const Piece& piece) { view.enter(piece); }
  TERSE_HD AveragingElement<View, MomentumPlaces> to_momentum(index_t i) const { return {view, i}; }
  TERSE_HD AveragingElement<View, PreconditionerPlaces> to_preconditioner(index_t i) const {
    return {view, i};
  }
  TERSE_HD AveragingLayer<View, PreconditionerPlaces> to_layer(const LayerTable* tables,
                                                               index_t layer) const {
    return {view, tables, layer};
  }
  TERSE_HD AveragingLayers<View, MomentumPlaces> to_layers(const LayerNorms& known) const {
    return {view, known};
  }

  static constexpr bool says = requires(const Momentum& rule, AveragingElement<View, MomentumPlaces> e) {
    rule.message(e);
  };
  static constexpr bool listens = requires(const Momentum& rule, AveragingElement<View, MomentumPlaces> e) {
    rule.sent(e, true, 0.0F);
  };
  static constexpr bool differs_exactly =
      requires(const Momentum& rule, AveragingElement<View, MomentumPlaces> e) {
    rule.exact_direction(e, 0.0F);
  };
  static constexpr bool implies_gradient =
      requires(const Momentum& rule, AveragingElement<View, MomentumPlaces> e) {
    rule.mean_gradient(e, 0.0F);
  };

  TERSE_HD float message(index_t i) const {
    if constexpr (says)
      return momentum.message(to_momentum(i));
    else
      return to_momentum(i).g();
  }
  template <bool Exact>
  TERSE_HD float step(index_t i, float mean) const {
    if constexpr (Exact && differs_exactly)
      return preconditioner.step(to_preconditioner(i), mean, momentum.exact_direction(to_momentum(i), mean));
    float gradient = mean;
    if constexpr (!Exact && implies_gradient) gradient = momentum.mean_gradient(to_momentum(i), mean);
    return preconditioner.step(to_preconditioner(i), gradient, momentum.direction(to_momentum(i), mean));
  }
};

/// What a rank sends of a compressed segment.
template <class Rules>
struct Say {
  Rules rules;
  TERSE_HD void enter(const Piece& piece) { rules.enter(piece); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return rules.message(i); }
  TERSE_HD void sent(index_t i, bool keep, float decoded) const requires(Rules::listens) {
    rules.momentum.sent(rules.to_momentum(i), keep, decoded);
  }
};

/// x = x - learning_rate (u + weight_decay x), from the mean, which Exact ones may have to scale first.
template <class Rules, bool Exact>
struct Descend {
  Rules rules;
  float gradient_factor = 1;
  TERSE_HD void enter(const Piece& piece) { rules.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    const float x = rules.view.parameters[i];
    const float u = rules.template step<Exact>(i, Exact ? mean * gradient_factor : mean);
    rules.view.parameters.set(i, x - rules.view.rate.learning_rate * (u + rules.view.rate.weight_decay * x));
  }
};

/// The same where the step of a layer is taken in a second sweep: u is kept.
template <class Rules, bool Exact>
struct KeepStep {
  Rules rules;
  float* steps;
  float gradient_factor = 1;
  TERSE_HD void enter(const Piece& piece) { rules.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    steps[i] = rules.template step<Exact>(i, Exact ? mean * gradient_factor : mean);
  }
};

/// The mean counts for nothing.
struct Ignore {
  TERSE_HD void operator()(const Piece&, index_t, float) const {}
};

/// Starts a Difference from an exact round on the way to what the mean is for.
template <class Feedback, Number G, class Use>
struct Seeding {
  Feedback feedback;
  index_t end;  // one past the last arena index that the feedback holds
  ScaledGradient<G> own;
  Use use;
  float gradient_factor = 1;
  bool held = false;

  TERSE_HD void enter(const Piece& piece) {
    use.gradient_factor = gradient_factor;
    terse::enter(own, piece);
    terse::enter(use, piece);
    held = piece.offset >= feedback.begin && piece.offset + piece.count <= end;
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    if (held) feedback.seed(i, sanitized(own(piece, i)).value, mean);
    use(piece, i, mean);
  }
};

struct Everywhere {
  TERSE_HD bool operator()(const Piece&, index_t) const { return true; }
};

/// What the second stage's preconditioner takes along, from what the first one's divides by.
template <class First, class Second>
struct CarryOver {
  First first;
  Second second;
  TERSE_HD void enter(const Piece& piece) {
    first.enter(piece);
    second.enter(piece);
  }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    const auto e = second.to_preconditioner(i);
    if constexpr (requires { second.preconditioner.carry(e, 0.0F); }) {
      static_assert(
          requires { first.preconditioner.denominator(first.to_preconditioner(i)); },
          "terse: the second stage's preconditioner (FrozenVariance, for one) goes on with what the first "
          "one's "
          "divides by, and that one has no denominator(e)");
      second.preconditioner.carry(e, first.preconditioner.denominator(first.to_preconditioner(i)));
    }
  }
};
/// Whether an element goes on to the second stage.
template <class Second>
struct TakesPart {
  Second second;
  TERSE_HD void enter(const Piece& piece) { second.enter(piece); }
  TERSE_HD bool operator()(const Piece&, index_t i) const {
    const auto e = second.to_preconditioner(i);
    if constexpr (requires { second.preconditioner.takes_part(e); })
      return second.preconditioner.takes_part(e);
    else
      return true;
  }
};
/// What the second stage's momentum correction takes along.
template <class Second>
struct CarryMomentum {
  TakesPart<Second> part;
  TERSE_HD void enter(const Piece& piece) { part.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i) const {
    const auto e = part.second.to_momentum(i);
    if constexpr (requires { part.second.momentum.carry(e, true); })
      part.second.momentum.carry(e, part(piece, i));
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
