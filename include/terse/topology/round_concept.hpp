// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "terse/codec.hpp"

// The round of a compressor's packets, and its requirements. See Topology for the contract.

namespace terse::detail {

/// A stand-in for a consumer of the mean.
struct SomeConsumer {
  void operator()(const Piece&, index_t, float) const {}
};

/// Reports a missing member of an exact topology's round with a readable static_assert. `carries_dense`: no other topology carries
/// its full-precision packets.
template <class Round, class Context, bool carries_dense>
constexpr bool check_round() {
  using M = Message<SomeMessage, SomeMessage>;
  using Consumer = Message<SomeConsumer, SomeConsumer>;
  static_assert(
      requires(Round & round, Context & context, const M& message) { round.start(context, message); },
      "terse: a topology's Round needs `void start(context, message)`, which evaluates and posts");
  static_assert(
      requires(Round & round, Context & context, const M& message) {
        { round.advance(context, message, true) } -> std::same_as<bool>;
      },
      "terse: a topology's Round needs `bool advance(context, message, bool block)`, true when all is here");
  static_assert(
      requires(Round & round, Context & context, const Consumer& consumer) {
        round.consume(context, consumer);
      },
      "terse: a topology's Round needs `void consume(context, consumer)`, which decodes the mean");
  static_assert(
      requires(const Round& round, const Context& context) {
        { round.most_bytes(context) } -> std::same_as<index_t>;
      },
      "terse: a topology's Round needs `index_t most_bytes(context) const`, the most bytes that a rank "
      "sends");
  static_assert(
      !carries_dense ||
          requires(Round & round, Context & context) {
            { round.notes(context.executor) } -> std::convertible_to<double>;
          },
      "terse: a topology that carries full-precision packets itself needs, in its Round, `double "
      "notes(executor)`, "
      "the squared norm of the mean's full-precision part, for clipping. Or it names another that carries "
      "them: "
      "`using ForDense = ScatterGather`");
  return true;
}

/// Returns the cut of a topology's chunks, by its member `cut` if it has one.
template <class P>
constexpr CutBy cut_by() {
  if constexpr (requires { P::cut; }) return P::cut;
  return CutBy::kind;
}

/// Checks whether a topology's ranks encode their own chunks only.
template <class P>
constexpr bool encodes_own() {
  if constexpr (requires { P::encodes_own; }) return P::encodes_own;
  return false;
}

/// Returns the bytes of a context's `work` that a round requires.
template <class Round, class Context, class P>
index_t work_bytes(const Context& context, const P& topology) {
  if constexpr (requires { Round::work_bytes(context); }) return Round::work_bytes(context);
  if constexpr (requires { Round::work_bytes(context, topology); })
    return Round::work_bytes(context, topology);
  return 0;
}
/// Returns the round of a topology, which may have parameters.
template <class Round, class Context, class P>
Round make_round(Context& context, const P& topology) {
  if constexpr (std::is_constructible_v<Round, Context&, const P&>)
    return Round(context, topology);
  else
    return Round(context);
}

/// True for compressors that work with any topology's round.
template <class C>
inline constexpr bool takes_any_round = C::lossless || requires {
  typename C::Incoming;
};

/// The round of C over P: the topology's, unless the compressor has its own protocol.
template <class C, class F, class P, class E>
struct RoundOf {
  static_assert(takes_any_round<C>,
                "terse: this compressor has rounds of its own; include them (Select's are in "
                "terse/exchange/selected_rounds.hpp, mixing with Lattice or Moniqua in "
                "terse/exchange/keyed_mixing.hpp)");
  using type = typename P::template Round<C, F, E>;
};
template <class C, class F, class P, class E>
requires NamesRound<C, F, P, E>
struct RoundOf<C, F, P, E> {
  using type = typename C::template Round<F, P, E>;
  static_assert(
      requires { sizeof(type); },
      "terse: this compressor has a round of its own; include it (LowRank's is in "
      "terse/exchange/low_rank_round.hpp)");
};

}  // namespace terse::detail
