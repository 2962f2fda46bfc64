// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "terse/error_feedback/requirements.hpp"

namespace terse {

/// A policy for a rank's compression error, copyable and with hyper-parameters. Its `State<E>(policy, begin, end)`
/// belongs to one rank and covers the arena indices [begin, end). For checkpoints, `walk(visit)` shows the state that
/// lasts from round to round. It calls visit(name, buffer.all(), begin) for a buffer that begins at arena index
/// `begin`, and visit(name, number) for a std::uint64_t member. `start(rate)`, which is optional, receives the learning
/// rate of the coming round. `view()` returns a copyable functor that is passed to verbs and has, for arena index i,
///
///     compensate(i, message) -> y, the value to send         load(i), store(i, y): y between the two passes
///     commit(i, keep, y, decoded): takes the value that receivers decode; masked elements keep no error
///     receive(i, keep, mean) -> the value that the mean represents; optional, by default the mean
///
/// and, for sparse compressors and low rank, `at(i)`, the address of y, which is contiguous within a segment. A view
/// with `seed(i, own, mean)` holds copies. They are initialized from this rank's message and the mean by an exact
/// round: the first round, and the first one after a failed round. On a device all of these are TERSE_HD.
///
/// `corrects` means that errors are sent later, which a biased compressor requires to converge. Optional are these
/// facts. `accumulates`: the unsent part accumulates, so the compressor must track. `needs_contraction`.
/// `follows_changes`: a copy moves by the whole sent value, so only a contraction brings it closer to the message.
/// `single_stage`: the mean must not be compressed again. `block`: y is kept within blocks of so many elements. In the
/// view `commits_zero`: commit(i, keep, y, 0) changes nothing, so compressors may skip it for elements that they don't
/// send. A view may have `enter(piece)`, which verbs call as they do for their functors.
template <class F>
concept ErrorFeedback = std::copyable<F> && detail::HasFeedbackState<F> && detail::ShowsFeedbackState<F> &&
    detail::StartsFits<F> && detail::HasFeedbackView<F> && detail::FeedbackView<detail::SomeViewOf<F>> &&
    requires {
  { F::corrects } -> std::convertible_to<bool>;
};

/// Reports a missing member of an error feedback with a readable static_assert.
template <class F>
constexpr bool check_error_feedback() {
  static_assert(std::copyable<F>, "terse: an error feedback is a value: it must be copyable");
  static_assert(
      requires {
        { F::corrects } -> std::convertible_to<bool>;
      },
      "terse: an error feedback states `static constexpr bool corrects`, whether errors come back later");
  static_assert(detail::HasFeedbackState<F>,
                "terse: an error feedback needs `template <Executor E> struct State` with a constructor "
                "State(policy, index_t begin, index_t end) for the arena indices [begin, end)");
  if constexpr (detail::HasFeedbackState<F>) {
    static_assert(detail::ShowsFeedbackState<F>,
                  "terse: an error feedback's State needs `template <class Visit> void walk(Visit&& visit)`, "
                  "which visits the buffers that persist between rounds");
    static_assert(detail::StartsFits<F>,
                  "terse: an error feedback's start is `void start(float rate)`, of its State");
    static_assert(detail::HasFeedbackView<F>,
                  "terse: an error feedback's State needs `view()`, which returns a copyable functor of "
                  "pointers");
  }
  if constexpr (detail::HasFeedbackView<F>) {
    using V = detail::SomeViewOf<F>;
    static_assert(detail::Compensates<V>,
                  "terse: an error feedback's view needs `float compensate(index_t i, float message) const`, "
                  "which returns the value to send");
    static_assert(detail::HoldsMessage<V>,
                  "terse: an error feedback's view needs `float load(index_t i) const` and `void "
                  "store(index_t i, float y) const`, which keep the value to send between two passes");
    static_assert(detail::Commits<V>,
                  "terse: an error feedback's view needs `void commit(index_t i, bool keep, float y, float "
                  "decoded) const`, which receives the decoded value");
    static_assert(detail::ReceivesFits<V>,
                  "terse: an error feedback's receive is `float receive(index_t i, bool keep, float mean) "
                  "const`");
  }
  return ErrorFeedback<F>;
}

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
/// The error feedback of a chunk's owner, which compresses a mean again: F, or the type that F names.
template <class F>
struct OfOwners {
  using type = F;
  static const F& of(const F& feedback) { return feedback; }
};
template <class F>
requires requires { typename F::OfOwners; }
struct OfOwners<F> {
  using type = typename F::OfOwners;
  static type of(const F&) { return {}; }
};

/// Checks whether F's copies are initialized by an exact round, at first and after a failed round.
template <class F>
constexpr bool starts_exactly() {
  return requires(const SomeViewOf<F>& view) { view.seed(index_t{}, 0.0F, 0.0F); };
}
/// Returns the number of elements that a feedback holds between measuring and coding. 0 means the whole message.
template <class F>
constexpr index_t held_by() {
  if constexpr (requires { F::block; }) return F::block;
  return 0;
}

/// Rejects pairs that need not converge, with readable static_asserts. Unchecked<C> or Unchecked<F> overrides.
template <class C, class F>
constexpr bool check_feedback() {
  static_assert(check_error_feedback<F>());
  constexpr bool any = Traits<C>::unchecked || Traits<F>::unchecked;
  static_assert(
      // The error of a keyed compressor is bounded, and all ranks decode the same values from its packets.
      any || C::unbiased || F::corrects || Traits<C>::keyed,
      "terse: a biased compressor (Sign, for one) needs error feedback: without it the error of every step "
      "is "
      "lost and the optimizer need not converge (Karimireddy et al., ICML 2019). Use Residual, not "
      "NoErrorFeedback");
  static_assert(any || !detail::accumulates<F>() || Traits<C>::tracks,
                "terse: under Residual the error of this compressor grows without bound, because it is not a "
                "contraction (Stich and "
                "Karimireddy, JMLR 2020). Use NoErrorFeedback, if it is unbiased, or one that tracks");
  static_assert(
      any || !detail::needs_contraction<F>() || C::unbiased || Traits<C>::contractive,
      "terse: Ef21 needs a contractive compressor (TopK, ScaledSign<MeanAbs>; EF21, Richtarik et al., "
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

}  // namespace detail

}  // namespace terse
