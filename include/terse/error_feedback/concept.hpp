// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "terse/compressor/concept.hpp"

namespace terse {

namespace detail {

/// What a feedback's state is for, without one: concepts try feedbacks on it.
struct IgnoreState {
  template <class... Part>
  void operator()(const char*, Part&&...) const {}
};

/// The parts of a state that checkpoints take.
struct Part {
  template <class T, class Space>
  void operator()(view<T, Space>, index_t) const {}
  void operator()(std::uint64_t&) const {}
};
/// A visitor that says in words how it is called, where a walk calls it otherwise.
template <class Visit>
struct PartByPart {
  Visit& visit;
  template <class Name, class... Shown>
  void operator()(const Name& name, Shown&&... shown) const {
    constexpr bool right =
        std::is_convertible_v<const Name&, std::string> && std::is_invocable_v<Part, Shown...>;
    static_assert(right,
                  "terse: an error feedback's walk calls visit(name, buffer.all(), begin) for a buffer that "
                  "begins at this arena index, and visit(name, number) for a std::uint64_t that is a member");
    if constexpr (right) visit(name, std::forward<Shown>(shown)...);
  }
};

template <class F>
using SomeStateOf = typename F::template State<SomeExecutor>;
template <class F>
using SomeViewOf = decltype(std::declval<SomeStateOf<F>&>().view());

template <class F>
concept HasFeedbackState = std::is_constructible_v < SomeStateOf<F>,
const F&, index_t, index_t > ;
template <class F>
concept ShowsFeedbackState = requires(SomeStateOf<F>& state) {
  state.walk(IgnoreState{});
};
template <class F>
concept StartsFits = !requires {
  &SomeStateOf<F>::start;
}
|| requires(SomeStateOf<F>& state) { state.start(1.0F); };
template <class F>
concept HasFeedbackView = requires {
  typename SomeViewOf<F>;
  requires std::copyable<SomeViewOf<F>>;
};
template <class V>
concept Compensates = requires(const V& view, index_t i, float message) {
  { view.compensate(i, message) } -> std::same_as<float>;
};
template <class V>
concept HoldsMessage = requires(const V& view, index_t i, float y) {
  { view.load(i) } -> std::same_as<float>;
  view.store(i, y);
};
template <class V>
concept Commits = requires(const V& view, index_t i, float y, float decoded) {
  view.commit(i, true, y, decoded);
};
template <class V>
concept ReceivesFits = !requires {
  &V::receive;
}
|| requires(const V& view, index_t i, float mean) {
  { view.receive(i, true, mean) } -> std::same_as<float>;
};
template <class V>
concept FeedbackView = Compensates<V> && HoldsMessage<V> && Commits<V> && ReceivesFits<V>;

}  // namespace detail

/// Decides what a rank does about its compression error. A copyable policy with hyper-parameters; its
/// `State<E>(policy, begin, end)` belongs to one rank and covers the arena indices [begin, end). `walk(visit)` shows what
/// lasts from round to round, for checkpoints: visit(name, buffer.all(), begin) for a buffer, whose arena index it begins at
/// is told, and visit(name, number) for a std::uint64_t that is a member. `start(rate)` tells the state, where it has it, the learning rate of the round to come. A
/// `view()`, copyable, enters the verbs and has, for arena index i,
///
///     compensate(i, message) -> y, what shall be sent        load(i), store(i, y): y between the two passes
///     commit(i, keep, y, decoded): what the receiver reads is known; masked elements keep no error
///     receive(i, keep, mean) -> what the mean stands for; optional, the mean itself by default
///
/// and, for sparse compressors and low rank, `at(i)`, the address of y, where a segment's lie side by side. A view with
/// `seed(i, own, mean)` holds copies that start from the first round, which is exact, and again from one after a round that
/// failed: what this rank said, and the mean. On a device all of these are TERSE_HD.
///
/// `corrects` says whether errors come back later, which a biased compressor needs to converge. Optional:
/// `accumulates` (what was not sent adds up, so that the compressor must track), `needs_contraction`,
/// `follows_changes` (a copy moves by all that is sent, so that nothing but a contraction brings it nearer),
/// `single_stage` (nothing may compress the mean again), `block` (y lives within blocks of so many elements), and of the
/// view `commits_zero` (commit(i, keep, y, 0) changes nothing, so that compressors may leave it out where they send
/// nothing). A view may have `enter(piece)`, which verbs call as they call their functors'.
template <class F>
concept ErrorFeedback = std::copyable<F> && detail::HasFeedbackState<F> && detail::ShowsFeedbackState<F> &&
    detail::StartsFits<F> && detail::HasFeedbackView<F> && detail::FeedbackView<detail::SomeViewOf<F>> &&
    requires {
  { F::corrects } -> std::convertible_to<bool>;
};

/// Says in words what a type lacks to be an error feedback.
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
                  "which shows what lasts from round to round");
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
                  "what shall be sent");
    static_assert(
        detail::HoldsMessage<V>,
        "terse: an error feedback's view needs `float load(index_t i) const` and `void store(index_t "
        "i, float y) const`, which keep what shall be sent between two passes");
    static_assert(detail::Commits<V>,
                  "terse: an error feedback's view needs `void commit(index_t i, bool keep, float y, float "
                  "decoded) const`, which is told what receivers read");
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
/// What the owner of a chunk does about its error where it compresses a mean again: the same as ranks, or what F names.
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

/// Whether its copies start from an exact round, and anew after a round that failed.
template <class F>
constexpr bool starts_exactly() {
  return requires(const SomeViewOf<F>& view) { view.seed(index_t{}, 0.0F, 0.0F); };
}
/// Elements that a feedback holds between measuring and coding; 0: the whole message.
template <class F>
constexpr index_t held_by() {
  if constexpr (requires { F::block; }) return F::block;
  return 0;
}

}  // namespace detail

/// Whether this pair converges; the sentences are for people. Unchecked<C> or Unchecked<F> overrides.
template <class C, class F>
constexpr bool check_feedback() {
  static_assert(check_error_feedback<F>());
  constexpr bool any = Traits<C>::unchecked || Traits<F>::unchecked;
  static_assert(
      // The error of a keyed compressor is below a bound, and its packets say the same to everybody.
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
