// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "terse/momentum_correction/concept.hpp"
#include "terse/optimizer/averaging_layers.hpp"
#include "terse/optimizer/group_rules.hpp"
#include "terse/preconditioner/concept.hpp"
#include "terse/preconditioner/layer_shape.hpp"
#include "terse/preconditioner/parameter_ref.hpp"
#include "terse/preconditioner/rates.hpp"

// The rules of Averaging and Staged, applied to one element of a step.

namespace terse::detail {

/// A list of distinct names in the order of their first mention. Buffers with equal names are one buffer.
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

/// Returns the names of a first stage's policies and, with Second, of a second stage's policies.
template <bool Second, std::size_t M1, std::size_t P1, std::size_t M2, std::size_t P2>
constexpr auto all_names(const std::array<const char*, M1>& momentum,
                         const std::array<const char*, P1>& preconditioner,
                         const std::array<const char*, M2>& second_momentum,
                         const std::array<const char*, P2>& second_preconditioner) {
  Names<M1 + P1 + M2 + P2 + 1> all;
  all.add(momentum);
  all.add(preconditioner);
  if (Second) {
    all.add(second_momentum);
    all.add(second_preconditioner);
  }
  return all;
}

/// The place of a policy's first scalar among those of a step, and the numbers of the policy's buffers, as a type, which nvcc can
/// name.
template <int Scalar, int... Buffers>
struct Places {
  static constexpr int scalar = Scalar;
  static constexpr int count = sizeof...(Buffers);
  static constexpr std::uint32_t bits = (std::uint32_t{} | ... | (std::uint32_t{1} << Buffers));

  /// Calls act(k, buffer) for each of the policy's buffers, in order.
  template <class All, class Act>
  TERSE_HD TERSE_INLINE static void for_each([[maybe_unused]] const All& buffers,
                                             [[maybe_unused]] const Act& act) {
    [[maybe_unused]] std::size_t k = 0;
    (act(k++, buffers[Buffers]), ...);
  }

  /// Returns the policy's buffers as streams with access A; momentum and preconditioner share none, see share_no_name.
  template <Access A, class All>
  TERSE_HD static auto streams([[maybe_unused]] All& buffers) {
    return (Streams<>{} + ... + stream<A>(buffers[Buffers], nullptr));
  }
};

}  // namespace terse::detail

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The arrays and values that the rules of a step share.
template <class N, int Buffers, int Scalars, int Layers>
struct AveragingView {
  ParameterRef<typename N::parameter> parameters;
  const typename N::gradient* gradients;
  std::array<float*, static_cast<std::size_t>(Buffers == 0 ? 1 : Buffers)> buffers;
  std::array<float*, static_cast<std::size_t>(Layers == 0 ? 1 : Layers)> layers;
  const Rate* rates;
  const StepScalars* now;                 // one for each group
  const std::uint32_t* groups = nullptr;  // of segments; nullptr if there is one group
  const LayerShape* shapes = nullptr;     // of segments; nullptr if none is hidden
  std::uint32_t group = 0;
  Rate rate{};
  bool hidden = false;
  float scale = 1;
  std::array<float, static_cast<std::size_t>(Scalars == 0 ? 1 : Scalars)> scalars{};
  std::array<float, static_cast<std::size_t>(Layers == 0 ? 1 : Layers)> of_layer{};

  TERSE_HD std::uint32_t group_of(index_t segment) const { return groups == nullptr ? 0 : groups[segment]; }
  TERSE_HD void enter(const Piece& piece) {
    group = group_of(piece.segment);
    rate = rates[piece.segment];
    hidden = shapes != nullptr && shapes[piece.segment].hidden;
    scale = now->gradient_scale;
    for (int k = 0; k < Scalars; ++k)
      scalars[static_cast<std::size_t>(k)] = now[group].own[static_cast<std::size_t>(k)];
    for (int k = 0; k < Layers; ++k)
      of_layer[static_cast<std::size_t>(k)] = layers[static_cast<std::size_t>(k)][piece.segment];
  }

  /// Returns the gradients and the buffers whose bits are set in Taken, as streams with access A.
  template <Access A, std::uint32_t Taken, int K = 0>
  TERSE_HD auto streams() {
    if constexpr (K == Buffers)
      return reads(gradients);
    else if constexpr ((Taken >> K & 1U) != 0)
      return stream<A>(buffers[static_cast<std::size_t>(K)], nullptr) + streams<A, Taken, K + 1>();
    else
      return streams<A, Taken, K + 1>();
  }
};

struct ReadInto {
  float* held;
  float* was;
  index_t i;
  TERSE_HD TERSE_INLINE void operator()(std::size_t k, const float* buffer) const {
    held[k] = was[k] = buffer[i];
  }
};
/// Writes a value back, unless the compiler can prove that no rule has changed it.
struct WriteBack {
  const float* held;
  const float* was;
  index_t i;
  TERSE_HD TERSE_INLINE void operator()(std::size_t k, float* buffer) const {
    const bool untouched = std::bit_cast<std::uint32_t>(held[k]) == std::bit_cast<std::uint32_t>(was[k]);
    if (!TERSE_KNOWN(untouched)) buffer[i] = held[k];
  }
};

/// One element as seen by the policy with these Places, see MomentumCorrection. It has copies of the policy's buffers, so that all
/// are read before one is written: a compiler cannot know that the buffers don't overlap. Changes take effect with `write_back`.
template <class View, class Places>
class HeldElement {
 public:
  static constexpr int count = Places::count;

  TERSE_HD TERSE_INLINE HeldElement(const View& view, index_t i) : view_(view), i_(i) {
    Places::for_each(view.buffers, ReadInto{held_, was_, i});
  }
  TERSE_HD TERSE_INLINE void write_back() const {
    Places::for_each(view_.buffers, WriteBack{held_, was_, i_});
  }

  TERSE_HD float x() const { return view_.parameters[i_]; }
  TERSE_HD float g() const { return widened(view_.gradients[i_]) * view_.scale; }
  TERSE_HD float rate() const { return view_.rate.learning_rate; }
  TERSE_HD float decay() const { return view_.rate.weight_decay; }
  TERSE_HD float& operator[](int k) const { return held_[k]; }
  TERSE_HD float scalar(int k) const { return view_.scalars[static_cast<std::size_t>(Places::scalar + k)]; }
  TERSE_HD float layer(int k) const { return view_.of_layer[static_cast<std::size_t>(Places::layer(k))]; }
  TERSE_HD bool hidden() const { return view_.hidden; }

 private:
  static constexpr int room = Places::count == 0 ? 1 : Places::count;

  const View& view_;
  index_t i_;
  mutable float held_[static_cast<std::size_t>(room)];
  float was_[static_cast<std::size_t>(room)];
};

/// A momentum correction and a preconditioner on one View.
template <class Momentum, class Preconditioner, class View_, class MomentumPlaces, class PreconditionerPlaces,
          bool RestsAtZero>
struct Rules {
  using View = View_;
  using measures = typename MeasuresOf<Preconditioner>::type;
  static constexpr bool rests_at_zero = RestsAtZero;

  Momentum momentum;
  Preconditioner preconditioner;
  View view;
  /// Rules with the hyper-parameters of each group; nullptr if the two above apply to all segments.
  const StageRules<Momentum, Preconditioner>* of_groups = nullptr;

  TERSE_HD void enter(const Piece& piece) {
    view.enter(piece);
    if (of_groups == nullptr) return;
    momentum = of_groups[view.group].momentum;
    preconditioner = of_groups[view.group].preconditioner;
  }
  /// Returns the preconditioner of a layer, which need not be the one that was entered.
  TERSE_HD Preconditioner preconditioner_of(index_t layer) const {
    return of_groups == nullptr ? preconditioner : of_groups[view.group_of(layer)].preconditioner;
  }
  TERSE_HD TERSE_INLINE HeldElement<View, MomentumPlaces> to_momentum(index_t i) const { return {view, i}; }
  TERSE_HD TERSE_INLINE HeldElement<View, PreconditionerPlaces> to_preconditioner(index_t i) const {
    return {view, i};
  }
  TERSE_HD AveragingLayer<View, PreconditionerPlaces> to_layer(const LayerTable* tables,
                                                               index_t layer) const {
    return {view, tables, layer};
  }
  TERSE_HD AveragingLayers<View, MomentumPlaces> to_layers(const LayerNorms& known) const {
    return {view, known};
  }

  static constexpr bool says = requires(const Momentum& rule, HeldElement<View, MomentumPlaces> e) {
    rule.message(e);
  };
  static constexpr bool listens = requires(const Momentum& rule, HeldElement<View, MomentumPlaces> e) {
    rule.sent(e, true, 0.0F);
  };
  static constexpr bool hears_of_steps = requires(const Momentum& rule, HeldElement<View, MomentumPlaces> e) {
    rule.stepped(e, true);
  };
  static constexpr bool differs_exactly =
      requires(const Momentum& rule, HeldElement<View, MomentumPlaces> e) {
    rule.exact_direction(e, 0.0F);
  };
  static constexpr bool implies_gradient =
      requires(const Momentum& rule, HeldElement<View, MomentumPlaces> e) {
    rule.mean_gradient(e, 0.0F);
  };

  /// Buffers that the second sweep of layers reads or writes.
  static constexpr std::uint32_t in_second_sweep =
      PreconditionerPlaces::bits | (hears_of_steps ? MomentumPlaces::bits : 0);

  /// Returns the arrays that message(i) accesses.
  TERSE_HD auto message_streams() {
    constexpr Access access = says ? Access::may_update : Access::reads;
    return MomentumPlaces::template streams<access>(view.buffers) + reads(view.gradients) +
           reads(view.parameters.values);
  }
  /// Returns the arrays that step<Exact>(i) accesses, except for the parameters.
  template <bool Exact>
  TERSE_HD auto step_streams() {
    constexpr bool replaces = requires { requires std::is_same_v<typename Momentum::ReplacesOf, Momentum>; }
    &&!(Exact && differs_exactly) && !implies_gradient;
    constexpr Access access = replaces ? Access::writes : Access::may_update;
    return MomentumPlaces::template streams<access>(view.buffers) +
           PreconditionerPlaces::template streams<Access::may_update>(view.buffers) + reads(view.gradients);
  }

  TERSE_HD TERSE_INLINE float message(index_t i) const {
    const auto e = to_momentum(i);
    if constexpr (says) {
      const float message = momentum.message(e);
      e.write_back();
      return message;
    } else {
      return e.g();
    }
  }
  TERSE_HD TERSE_INLINE void sent(index_t i, bool keep, float decoded) const {
    const auto e = to_momentum(i);
    momentum.sent(e, keep, decoded);
    e.write_back();
  }
  template <bool Exact>
  TERSE_HD TERSE_INLINE float step(index_t i, float mean) const {
    const auto own = to_momentum(i);
    const auto other = to_preconditioner(i);
    float gradient = mean, direction;
    if constexpr (!Exact && implies_gradient) gradient = momentum.mean_gradient(own, mean);
    if constexpr (Exact && differs_exactly)
      direction = momentum.exact_direction(own, mean);
    else
      direction = momentum.direction(own, mean);
    const float step = preconditioner.step(other, gradient, direction);
    own.write_back();
    other.write_back();
    return step;
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
