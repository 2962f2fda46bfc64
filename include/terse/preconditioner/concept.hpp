// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "terse/executor/concept.hpp"

namespace terse {

/// What is true of a preconditioner's arithmetic.
struct PreconditionerFacts {
  /// The step of a layer depends on norms over all of it, so that it is taken in a second sweep.
  bool layer_wise = false;
  /// Segments of fewer dimensions go without the norms' factor.
  std::size_t least_dimensions = 0;
  /// Goes on with what a first stage has learned: for the second stage of a Staged alone.
  bool continues_first_stage = false;
};

/// How a direction becomes a step, of methods that average over all ranks. A copyable policy of hyper-parameters with
///
///     static constexpr PreconditionerFacts facts{...};
///     static constexpr std::array<const char*, N> state{...};    names of its buffers, n floats each, which start at 0
///     template <class Real> struct Rule                          the arithmetic for one element, and its parameters
///     template <class Real> Rule<Real> rule() const
///
/// and, where it has hyper-parameters, check() and settings(visit). Of an element e, see MomentumCorrection, a rule has
///
///     step(e, mean, direction)   the step u, in x = x - learning_rate (u + weight_decay x); mean is what arrived, and
///                                direction what the momentum correction made of it
///     denominator(e)             optional: what it divides by, without bias correction, and 0 where it has learned nothing
///     carry(e, denominator)      optional, see Staged
///     takes_part(e)              optional: whether an element goes on to be compressed, see Staged
///     at_step(t)                 optional: std::array<Real, N>, what e.scalar(k) is in step t = 1, 2, ...
///
/// denominator, carry and takes_part read buffers alone. Where facts.layer_wise, the first sweep keeps u, and the second takes the step of a layer from two norms:
///
///     measured(e, u)                             what the second norm is of; the first is ||x||
///     factor(x_norm, norm, weight_decay)         of a layer whose norms were measured; 1 for others
///     move(e, u, rate)                           what x loses; rate is the learning rate times the layer's factor
///
/// Arithmetic is templated on Real, so that oracles run the same text in double.
template <class P>
concept Preconditioner = std::copyable<P> && requires(const P& policy) {
  requires std::same_as<const PreconditionerFacts, decltype(P::facts)>;
  P::state.size();
  policy.template rule<float>();
  policy.template rule<double>();
};

/// Says in words what a type lacks to be a preconditioner.
template <class P>
constexpr bool check_preconditioner() {
  static_assert(
      requires { requires std::same_as<const PreconditionerFacts, decltype(P::facts)>; },
      "terse: a preconditioner states `static constexpr PreconditionerFacts facts{...}`");
  static_assert(
      requires { P::state.size(); },
      "terse: a preconditioner names its buffers: `static constexpr std::array<const char*, N> state{...}`");
  static_assert(
      requires(const P& policy) {
        policy.template rule<float>();
        policy.template rule<double>();
      },
      "terse: a preconditioner needs `template <class Real> Rule<Real> rule() const`, its arithmetic in "
      "float "
      "and, for oracles, in double");
  return Preconditioner<P>;
}

}  // namespace terse
