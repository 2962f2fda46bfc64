// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/optimizer/averaging_rules.hpp"

// The functors that Averaging and Staged pass to the exchange.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The message of a compressed segment.
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

/// The update x = x - learning_rate (u + weight_decay x) from the mean; with Exact the mean is scaled by gradient_factor first.
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

/// The first sweep of a layer-wise step: stores u for the second sweep.
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

/// Initializes the copies of an Ef21 from an exact round, and then applies `use` to the mean.
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

/// The message in the exact round that restarts an Ef21, for methods whose messages are not gradients. In a compressed
/// segment it is the message of a compressed round, which is stored for Reseeding; in other segments it is the gradient.
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
/// Restarts the copies of an Ef21 from the round of SayExactly, and then applies the updates to the means.
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

/// A predicate on a user's mask: true for elements that it includes (`taken`) or excludes.
struct InUsersMask {
  const std::uint8_t* elements;
  bool taken;
  TERSE_HD bool operator()(const Piece&, index_t i, bool) const { return (elements[i] != 0) == taken; }
};

/// The change of stages for one element: converts its state for the second stage, and returns true if the element takes part
/// there. left_out: masked by the user, as if the first stage had no state for the element.
template <class First, class Second>
struct GoOver {
  First first;
  Second second;
  bool tries;  // changes nothing, and returns true for elements that a user has masked
  TERSE_HD void enter(const Piece& piece) {
    first.enter(piece);
    second.enter(piece);
  }
  TERSE_HD bool operator()(const Piece&, index_t i, bool left_out) const {
    const bool carried = carries_over(i, left_out), takes_part = carried && !left_out;
    const auto e = second.to_momentum(i);
    // Without carry, the buffers of elements that a user has masked become 0.
    if constexpr (requires { second.momentum.carry(e, true); })
      second.momentum.carry(e, takes_part);
    else
      for (int k = 0; k < e.count; ++k) e[k] = keep_if(!left_out, e[k]);
    if (tries) return takes_part || left_out;
    e.write_back();
    return takes_part;
  }

 private:
  /// Makes the second preconditioner's state from the first one's denominator; returns true if the element takes part.
  TERSE_HD bool carries_over(index_t i, bool left_out) const {
    const auto e = second.to_preconditioner(i);
    if constexpr (requires { second.preconditioner.carry(e, 0.0F); }) {
      static_assert(
          requires { first.preconditioner.denominator(first.to_preconditioner(i)); },
          "terse: the second stage's preconditioner (FrozenVariance, for one) needs the first stage's "
          "denominator, and the first preconditioner has no denominator(e)");
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
