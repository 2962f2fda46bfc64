// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "terse/momentum_correction/mixing_rule.hpp"
#include "terse/preconditioner/parameter_ref.hpp"
#include "terse/preconditioner/rates.hpp"

// The functors of ParameterMixing: a mixing rule, applied to one element of a step.

namespace terse {

/// Coupled weight decay, part of the gradient: g + weight_decay x. It enters momentum.
struct CoupledDecay {
  static constexpr bool coupled = true;
};
/// Decoupled weight decay: every step begins with x - learning_rate weight_decay x.
struct DecoupledDecay {
  static constexpr bool coupled = false;
};

TERSE_NUMERICS_BEGIN

namespace detail {

/// The view of a step for mixing rules, see MixingRule. `Blind`: the message doesn't depend on the gradient, and is known before it.
template <class N, int Buffers, int Scalars, class Decay, bool Blind>
struct MixingView {
  ParameterRef<typename N::parameter> parameters;
  const typename N::gradient* gradients;
  std::array<float*, static_cast<std::size_t>(Buffers == 0 ? 1 : Buffers)> buffers;
  const Rate* rates;
  const StepScalars* now;
  bool sanitizes;  // gradients that are not finite count as 0
  Rate rate{};
  float scale = 1, rate_ratio = 0;
  std::array<float, static_cast<std::size_t>(Scalars == 0 ? 1 : Scalars)> scalars{};

  TERSE_HD void enter(const Piece& piece) {
    for (int k = 0; k < Scalars; ++k)
      scalars[static_cast<std::size_t>(k)] = now->own[static_cast<std::size_t>(2 + k)];
    rate = rates[piece.segment];
    rate.learning_rate *= now->own[1];
    scale = now->gradient_scale;
    rate_ratio = now->own[0];
  }

  struct Element {
    const MixingView& view;
    index_t i;

    TERSE_HD float held() const { return view.parameters[i]; }
    TERSE_HD float x() const {
      const float x = held();
      if constexpr (Decay::coupled) return x;
      return x - view.rate.learning_rate * view.rate.weight_decay * x;
    }
    TERSE_HD float g() const {
      const float raw = widened(view.gradients[i]) * view.scale;
      const float g = keep_if(!view.sanitizes || is_finite(raw), raw);
      if constexpr (Decay::coupled) return g + view.rate.weight_decay * held();
      return g;
    }
    TERSE_HD float rate() const { return view.rate.learning_rate; }
    TERSE_HD float decay() const { return view.rate.weight_decay; }
    TERSE_HD float ratio() const { return view.rate_ratio; }
    TERSE_HD float scalar(int k) const { return view.scalars[static_cast<std::size_t>(k)]; }
    TERSE_HD float& operator[](int k) const { return view.buffers[static_cast<std::size_t>(k)][i]; }
  };
  TERSE_HD Element element(index_t i) const { return {*this, i}; }

  /// Returns the arrays that a rule's outgoing(e) reads.
  TERSE_HD auto outgoing_streams() {
    const auto held = own_streams<Access::reads>(Each{}) + reads(parameters.values);
    if constexpr (Blind)
      return held;
    else
      return held + reads(gradients);
  }
  /// Returns the arrays that the rest of a rule accesses, except for the parameters.
  TERSE_HD auto streams() { return own_streams<Access::may_update>(Each{}) + reads(gradients); }

 private:
  using Each = std::make_integer_sequence<int, Buffers>;
  template <Access A, int... K>
  TERSE_HD auto own_streams(std::integer_sequence<int, K...>) {
    return (Streams<>{} + ... + stream<A>(buffers[static_cast<std::size_t>(K)], nullptr));
  }
};

template <class Rule, class Element, int K>
TERSE_HD auto outgoing(const Rule& rule, const Element& e, Vector<K> which) {
  if constexpr (requires { rule.outgoing(which, e); })
    return rule.outgoing(which, e);
  else
    return rule.outgoing(e);
}

/// The message z to the neighbours.
template <class Rule, class View, int K>
struct Outgoing {
  Rule rule;
  View view;

  using StreamsOf = Outgoing;
  TERSE_HD auto streams() { return view.outgoing_streams(); }
  TERSE_HD void enter(const Piece& piece) { view.enter(piece); }
  TERSE_HD float operator()(const Piece&, index_t i) const {
    return outgoing(rule, view.element(i), Vector<K>{});
  }
};

/// The update from the differences, in dense pieces.
template <class Rule, class View, int K>
struct Update {
  Rule rule;
  View view;

  using StreamsOf = Update;
  TERSE_HD auto streams() {
    if constexpr (K > 0)
      return view.streams() + reads(view.parameters.values);
    else
      return view.streams() + view.parameters.streams();
  }
  TERSE_HD void enter(const Piece& piece) { view.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i, float own, float difference) const {
    const auto e = view.element(i);
    if constexpr (K > 0)
      rule.update(Vector<K>{}, e, own, difference);
    else if constexpr (requires { rule.update(Vector<0>{}, e, own, difference); })
      view.parameters.set(i, rule.update(Vector<0>{}, e, own, difference));
    else
      view.parameters.set(i, rule.update(e, own, difference));
  }
};

/// The update from the differences in compressed pieces; z is the value before compression.
template <class Rule, class View, int K>
struct UpdateCompressed {
  Update<Rule, View, K> update;
  float consensus_rate;

  using StreamsOf = UpdateCompressed;
  TERSE_HD auto streams() { return update.streams(); }
  TERSE_HD void enter(const Piece& piece) { update.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, float difference) const {
    const float own = outgoing(update.rule, update.view.element(i), Vector<K>{});
    update(piece, i, own, consensus_rate * difference);
  }
};

/// The update of rules that move by their own decoded packet, and then add the neighbours' moves.
template <class Rule, class View>
struct UpdateByMoves {
  Update<Rule, View, 0> update;

  using StreamsOf = UpdateByMoves;
  TERSE_HD auto streams() { return update.view.streams() + reads(update.view.parameters.values); }
  TERSE_HD auto own_streams() { return update.streams(); }
  TERSE_HD void enter(const Piece& piece) { update.enter(piece); }
  TERSE_HD void own(const Piece& piece, index_t i, float decoded) const { update(piece, i, decoded, 0); }
  TERSE_HD void operator()(const Piece&, index_t i, float difference) const {
    update.rule.take_up(update.view.element(i), difference);
  }
};

/// Keeps a second vector, which may depend on x by weight decay, until the first is settled.
template <class Rule, class View, int K>
struct KeepOutgoing {
  Outgoing<Rule, View, K> message;
  float* kept;

  using StreamsOf = KeepOutgoing;
  TERSE_HD auto streams() { return message.streams() + writes(kept); }
  TERSE_HD void enter(const Piece& piece) { message.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i) const { kept[i] = message(piece, i); }
};
struct KeptOutgoing {
  const float* kept;
  using StreamsOf = KeptOutgoing;
  TERSE_HD auto streams() { return reads(kept); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return kept[i]; }
};

/// The update from a mean instead of a mixture. The message of a second vector was kept, since x has changed.
template <class Rule, class View, int K>
struct UpdateByMean {
  Update<Rule, View, K> update;
  const float* kept = nullptr;
  float gradient_factor = 1;

  using StreamsOf = UpdateByMean;
  TERSE_HD auto streams() {
    if constexpr (K > 0)
      return update.streams() + reads(kept);
    else
      return update.streams();
  }
  TERSE_HD void enter(const Piece& piece) { update.enter(piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    const float own = proposed(i);
    update(piece, i, own, mean - own);
  }

 private:
  TERSE_HD float proposed(index_t i) const {
    if constexpr (K > 0)
      return kept[i];
    else
      return outgoing(update.rule, update.view.element(i), Vector<K>{});
  }
};

template <class Rule, class View>
struct Adapt {
  Rule rule;
  View view;

  using StreamsOf = Adapt;
  TERSE_HD auto streams() { return view.streams() + view.parameters.streams(); }
  TERSE_HD void enter(const Piece& piece) { view.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i) const {
    view.parameters.set(i, rule.adapt(view.element(i)));
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
