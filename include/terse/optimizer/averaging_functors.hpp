// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging_rules.hpp"

// The functors of Averaging and Staged: what they hand to the exchange.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// What a rank sends of a compressed segment.
template <class Rules>
struct Say {
  Rules rules;
  using StreamsOf = Say;
  TERSE_HD auto streams() { return rules.message_streams(); }
  TERSE_HD void enter(const Piece& piece) { rules.enter(piece); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return rules.message(i); }
  TERSE_HD void sent(index_t i, bool keep, float decoded) const requires(Rules::listens) {
    rules.sent(i, keep, decoded);
  }
};

/// x = x - learning_rate (u + weight_decay x), from the mean, which Exact ones may have to scale first.
template <class Rules, bool Exact>
struct Descend {
  Rules rules;
  float gradient_factor = 1;
  using StreamsOf = Descend;
  TERSE_HD auto streams() { return rules.template step_streams<Exact>() + rules.view.parameters.streams(); }
  TERSE_HD void enter(const Piece& piece) { rules.enter(piece); }
  TERSE_HD bool rests() const requires(Rules::rests_at_zero && !Exact) {
    return rules.view.rate.weight_decay == 0;
  }
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
  using StreamsOf = KeepStep;
  TERSE_HD auto streams() {
    return rules.template step_streams<Exact>() + reads(rules.view.parameters.values) + writes(steps);
  }
  TERSE_HD void enter(const Piece& piece) { rules.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    steps[i] = rules.template step<Exact>(i, Exact ? mean * gradient_factor : mean);
  }
};

/// Starts a Difference from an exact round on the way to what the mean is for.
template <class Feedback, Number G, class Use>
struct Seeding {
  Feedback feedback;
  index_t begin, end;  // the arena indices that the feedback holds
  ScaledGradient<G> own;
  Use use;
  float gradient_factor = 1;
  bool held = false;

  TERSE_HD void enter(const Piece& piece) {
    use.gradient_factor = gradient_factor;
    terse::enter(own, piece);
    terse::enter(use, piece);
    held = piece.offset >= begin && piece.offset + piece.count <= end;
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    if (held) feedback.seed(i, sanitized(own(piece, i)).value, mean);
    use(piece, i, mean);
  }
};

/// What a rank says in the exact round that starts a Difference anew, where it says more than its gradient: of a compressed
/// segment what it would say in a compressed round, which is kept for Reseeding, and of others its gradient.
template <class Rules, class Feedback, Number G>
struct SayExactly {
  Say<Rules> message;
  Feedback feedback;
  ScaledGradient<G> gradient;
  const std::uint8_t* dense;
  bool is_dense = false;

  TERSE_HD void enter(const Piece& piece) {
    is_dense = dense[piece.segment] != 0;
    terse::enter(message, piece);
    terse::enter(gradient, piece);
  }
  TERSE_HD float operator()(const Piece& piece, index_t i) const {
    if (is_dense) return gradient(piece, i);
    const float said = message(piece, i), kept = sanitized(said).value;
    feedback.store(i, kept);
    if constexpr (Rules::listens) message.sent(i, true, kept);
    return said;
  }
};
/// Starts it from that round, on the way to what the means are for.
template <class Feedback, class Compressed, class Exact>
struct Reseeding {
  Feedback feedback;
  Compressed compressed;
  Exact exact;
  const std::uint8_t* dense;
  float gradient_factor = 1;
  bool is_dense = false;

  TERSE_HD void enter(const Piece& piece) {
    is_dense = dense[piece.segment] != 0;
    terse::enter(compressed, piece);
    terse::enter(exact, piece);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    if (is_dense) return exact(piece, i, mean * gradient_factor);
    feedback.seed(i, feedback.load(i), mean);
    compressed(piece, i, mean * gradient_factor);
  }
};

/// Whether a user's mask takes an element in, or leaves it out.
struct InUsersMask {
  const std::uint8_t* elements;
  bool taken;
  TERSE_HD bool operator()(const Piece&, index_t i, bool) const { return (elements[i] != 0) == taken; }
};

/// Between the stages: what the second one takes along of an element, and whether the element goes on to it. left_out: by a
/// user's mask, as if the first stage had learned nothing of the element.
template <class First, class Second>
struct GoOver {
  First first;
  Second second;
  bool tries;  // changes nothing, and says of what a user has left out that it is not masked
  TERSE_HD void enter(const Piece& piece) {
    first.enter(piece);
    second.enter(piece);
  }
  TERSE_HD bool operator()(const Piece&, index_t i, bool left_out) const {
    const bool carried = carries_over(i, left_out), takes_part = carried && !left_out;
    const auto e = second.to_momentum(i);
    // A momentum correction that does not say so takes nothing along of what is left out.
    if constexpr (requires { second.momentum.carry(e, true); })
      second.momentum.carry(e, takes_part);
    else
      for (int k = 0; k < e.count; ++k) e[k] = keep_if(!left_out, e[k]);
    if (tries) return takes_part || left_out;
    e.write_back();
    return takes_part;
  }

 private:
  /// What its preconditioner takes along, from what the first one's divides by; whether that lets the element take part.
  TERSE_HD bool carries_over(index_t i, bool left_out) const {
    const auto e = second.to_preconditioner(i);
    if constexpr (requires { second.preconditioner.carry(e, 0.0F); }) {
      static_assert(
          requires { first.preconditioner.denominator(first.to_preconditioner(i)); },
          "terse: the second stage's preconditioner (FrozenVariance, for one) goes on with what the first "
          "one's "
          "divides by, and that one has no denominator(e)");
      const float denominator = first.preconditioner.denominator(first.to_preconditioner(i));
      second.preconditioner.carry(e, keep_if(!left_out, denominator));
      if (!tries) e.write_back();
    }
    if constexpr (requires { second.preconditioner.takes_part(e); })
      return second.preconditioner.takes_part(e);
    else
      return true;
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
