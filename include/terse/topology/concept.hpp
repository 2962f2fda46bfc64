// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "terse/compressor/dense.hpp"
#include "terse/core/policy.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// The communication pattern: it determines which rank sends which packet to which rank. Exact topologies give every rank the
/// same mean; those that `recompress` compress sums or means again on the way. A topology is a policy with
///
///     static constexpr bool exact, recompresses
///     static constexpr bool compresses_partial_sums    optional: compresses sums of some ranks' messages
///     static constexpr bool full_precision_only        optional: carries no compressed packets
///     static constexpr bool evaluates_late             optional: evaluates messages in later phases than the first
///     static constexpr bool compresses_within          optional: has its own compressor for a part of the way
///     static constexpr bool no_mean                    optional: merges packets by another rule than the mean
///     using ForDense = ...                             optional: the topology of full-precision packets
///     using Early = ...                                optional, if it evaluates late: one that doesn't, for messages
///                                                      that change while their round is in progress
///     template <class T> static constexpr bool check_on()      optional: checks a transport's type T by static_assert
///
/// and, if it has parameters, settings(visit). It also has a nested `template <Compressor C, ErrorFeedback F, Executor E>
/// class Round`, one object for each exchange. Its constructor takes all memory, from (context) or (context, topology).
/// It runs over a RoundContext:
///
///     start(context, message)            evaluates, encodes, posts the first phase
///     advance(context, message, block)   completes the current phase, posts the next; true when all packets are here
///     consume(context, consumer)         decodes: consumer(piece, i, mean) once for each element
///     most_bytes(context)                the largest number of bytes that this rank sends in a round
///     notes(executor)                    exact topologies without ForDense: squared norm of the full-precision part of the mean,
///                                        equal on all ranks, for clipping: from the notes of packets, see note_of
///     walk(visit)                        optional: visits the round's state, such as the second stage's error
///     static work_bytes(context)         optional, or (context, topology): bytes of context.work that it uses from start until advance
///                                        returns true. An exchange cut into slices has a round for each, and they share this memory
///
/// terse/topology/round_context.hpp and round.hpp have the building blocks of rounds, and second_stage.hpp those that compress again.
template <class T>
concept Topology = std::copyable<T> && requires {
  { T::exact } -> std::convertible_to<bool>;
  { T::recompresses } -> std::convertible_to<bool>;
};

namespace detail {

/// True for topologies that have no class Round, but combine rounds of other topologies.
template <class T>
inline constexpr bool has_own_rounds = false;

}  // namespace detail

/// Reports a missing member of a topology with a readable static_assert.
template <class T>
constexpr bool check_topology() {
  static_assert(std::copyable<T>, "terse: a topology is a value that can be copied");
  static_assert(
      requires {
        { T::exact } -> std::convertible_to<bool>;
      },
      "terse: a topology states `static constexpr bool exact`, true if all ranks get the same mean");
  static_assert(
      requires {
        { T::recompresses } -> std::convertible_to<bool>;
      },
      "terse: a topology states `static constexpr bool recompresses`, true if it compresses again on the "
      "way");
  constexpr bool has_round = detail::has_own_rounds<T> || requires {
    typename T::template Round<Dense, NoErrorFeedback, SomeExecutor>;
  };
  static_assert(has_round,
                "terse: a topology needs a nested `template <Compressor C, ErrorFeedback F, Executor E> "
                "class Round`");
  if constexpr (Topology<T>) return detail::check_parameters<T>() && has_round;
  return false;
}

namespace detail {

/// Checks whether a topology compresses sums of some ranks' messages on the way to the sum of all.
template <class T>
constexpr bool compresses_partial_sums() {
  if constexpr (requires { T::compresses_partial_sums; }) return T::compresses_partial_sums;
  return false;
}
/// Checks whether ranks forward packets of variable size, so that the host must wait for their headers.
template <class T>
constexpr bool waits_for_sizes() {
  if constexpr (requires { T::waits_for_sizes; }) return T::waits_for_sizes;
  return false;
}
/// Checks whether a topology evaluates messages after the first phase.
template <class T>
constexpr bool evaluates_late() {
  if constexpr (requires { T::evaluates_late; }) return T::evaluates_late;
  return false;
}

/// Checks whether, for a compressor without its own round, a topology carries only full-precision packets.
template <class C, class T>
constexpr bool carries_no_packets() {
  if constexpr (
      requires { T::full_precision_only; } && requires { typename C::Incoming; })
    return T::full_precision_only && !C::lossless;
  return false;
}

/// Checks whether this topology, or decoding by this compressor, gives a result other than the mean of the messages.
template <class P>
constexpr bool is_no_mean() {
  if constexpr (requires { P::no_mean; }) return P::no_mean;
  return false;
}

/// Checks whether a topology has its own compressor for a part of the way.
template <class T>
constexpr bool compresses_within() {
  if constexpr (requires { T::compresses_within; }) return T::compresses_within;
  return false;
}

}  // namespace detail

/// Checks a transport's type T against the requirements of a topology or a recipe, by its check_on<T>(), with a readable static_assert.
template <class X, class T>
constexpr bool check_on() {
  if constexpr (requires { X::template check_on<T>(); }) return X::template check_on<T>();
  return true;
}

namespace detail {

/// Checks whether this topology may carry packets of this compressor and error feedback.
template <class C, class F, class T>
constexpr bool check_stages() {
  static_assert(!C::lossless || !compresses_within<T>(),
                "terse: Within uses the optimizer's compressor within nodes, too, and this optimizer has "
                "none. Give it one, or write Hierarchical<ScatterGather, ...>");
  static_assert(!carries_no_packets<C, T>(),
                "terse: a transport's own collectives add floats, so Native carries full-precision messages "
                "only: write Hierarchical<Native, ScatterGather> to compress between nodes");
  constexpr bool any = Traits<C>::unchecked || Traits<F>::unchecked;
  static_assert(
      any || !T::recompresses || !Traits<F>::single_stage,
      "terse: this error feedback (Ef21, ErrorControl) needs the mean of the packets as it is, and this "
      "topology compresses it "
      "again. Use AllGather");
  static_assert(
      any || !T::recompresses || !Traits<C>::single_stage,
      "terse: this compressor scales its picks (RandomK, unbiased), so that applying it again to "
      "the mean would scale twice, or averages over senders (MeanOverSenders), which must all be known "
      "in one place. Use AllGather, or RandomK without the scaling");
  static_assert(any || !Traits<F>::single_stage || !(is_no_mean<C>() || is_no_mean<T>()),
                "terse: this error feedback (Ef21, ErrorControl) needs the mean of the packets as it is, and "
                "MeanOverSenders and Gathered make something else of them. Use Residual, or AllGather");
  static_assert(T::exact || !is_no_mean<C>(),
                "terse: MeanOverSenders is for means over all ranks, by AllGather; graphs mix whole models");
  return true;
}

}  // namespace detail

}  // namespace terse
