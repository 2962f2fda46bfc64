// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/concept.hpp"

namespace terse {

/// Decides what a rank does about its compression error. A copyable policy with hyper-parameters; its
/// `State<E>(policy, begin, end)` belongs to one rank and covers the arena indices [begin, end). `start(rate)`
/// tells the state, where it has it, the learning rate of the round to come. A `view()` enters the verbs and
/// has, for arena index i,
///
///     compensate(i, message) -> y, what shall be sent        load(i), store(i, y): y between the two passes
///     commit(i, keep, y, decoded): what the receiver reads is known; masked elements keep no error
///     receive(i, keep, mean) -> what the mean stands for; optional, the mean itself by default
///
/// `corrects` says whether errors come back later, which a biased compressor needs to converge. Optional:
/// `accumulates` (what was not sent adds up, so that the compressor must track), `needs_contraction`,
/// `follows_changes` (a copy moves by all that is sent, so that nothing but a contraction brings it nearer),
/// `single_stage` (nothing may compress the mean again), `block` (y lives within blocks of so many elements).
/// A view may have `enter(piece)`, which verbs call as they call their functors'.
template <class F>
concept ErrorFeedback = std::copyable<F> && requires {
  { F::corrects } -> std::convertible_to<bool>;
};

namespace detail {

template <class F>
constexpr bool accumulates() {
  if constexpr (requires { F::accumulates; }) return F::accumulates;
  return false;
}
template <class F>
constexpr bool needs_contraction() {
  if constexpr (requires { F::needs_contraction; }) return F::needs_contraction;
  return false;
}
template <class F>
constexpr bool follows_changes() {
  if constexpr (requires { F::follows_changes; }) return F::follows_changes;
  return false;
}
/// Whether its copies start from an exact round, and anew after a round that failed.
template <class F>
constexpr bool starts_exactly() {
  return requires(typename F::View view) { view.seed(index_t{}, 0.0F, 0.0F); };
}
/// Elements that a feedback holds between measuring and coding; 0: the whole message.
template <class F>
constexpr index_t held_by() {
  if constexpr (requires { F::block; }) return F::block;
  return 0;
}
/// Elements that a compressor holds between measuring and coding; 0: up to the whole message.
template <class C>
constexpr index_t block_of() {
  if constexpr (requires { C::units(); }) return C::units().whole ? 0 : C::units().size;
  return 0;
}

}  // namespace detail

/// Whether this pair converges; the sentences are for people. Unchecked<C> or Unchecked<F> overrides.
template <class C, class F>
constexpr bool check_feedback() {
  constexpr bool any = Traits<C>::unchecked || Traits<F>::unchecked;
  static_assert(
      // The error of a keyed compressor is below a bound, and its packets say the same to everybody.
      any || C::unbiased || F::corrects || Traits<C>::keyed,
      "terse: a biased compressor (Sign, for one) needs error feedback: without it the error of every step "
      "is "
      "lost and the optimizer need not converge (Karimireddy et al., ICML 2019). Use Residual, not None");
  static_assert(any || !detail::accumulates<F>() || Traits<C>::tracks,
                "terse: under Residual the error of this compressor grows without bound, because it is not a "
                "contraction (Stich and "
                "Karimireddy, JMLR 2020). Use None, if it is unbiased, or one that tracks");
  static_assert(
      any || !detail::needs_contraction<F>() || C::unbiased || Traits<C>::contractive,
      "terse: Difference needs a contractive compressor (TopK, ScaledSign<MeanAbs>; EF21, Richtarik et al., "
      "NeurIPS 2021) "
      "or, at a rate below 1, an unbiased one (DIANA)");
  static_assert(
      any || !detail::follows_changes<F>() || Traits<C>::contractive,
      "terse: changes are sent against copies that move by all that was sent, so that the error shrinks only "
      "under a "
      "contraction: nearest rounding (Uniform<4, Nearest>), TopK, ScaledSign<MeanAbs>. Stochastic rounding "
      "to "
      "few levels makes it grow");
  static_assert(
      detail::held_by<F>() == 0 ||
          (detail::block_of<C>() > 0 && detail::block_of<C>() <= detail::held_by<F>()),
      "terse: an error stored in fewer bits holds the message for one block only; give the compressor "
      "PerBlock<N>, N at most the feedback's block");
  return true;
}

}  // namespace terse
