// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <utility>

#include "terse/codec.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/topology/envelope.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// A topology says who sends which packet to whom. Exact ones give every rank the same mean; those that
/// `recompress` compress sums or means again on the way. It is a policy with
///
///     static constexpr bool exact, recompresses
///     static constexpr bool compresses_partial_sums    optional: compresses sums of some ranks' messages
///     static constexpr bool full_precision_only        optional: carries no compressed packets
///     static constexpr bool evaluates_late             optional: evaluates messages in later phases than the first
///     static constexpr bool compresses_within          optional: has a compressor of its own for a part of the way
///     using ForDense = ...                             optional: the topology that full-precision packets take
///     using Early = ...                                optional, where it evaluates late: one that doesn't, for messages
///                                                      that change while their round is under way
///
/// and, where it has parameters, settings(visit), and a nested `template <Compressor C, ErrorFeedback F, Transport T, Executor E>
/// class Round`, one for each exchange, which takes all memory at construction, from (context) or (context, topology), and
/// runs over a RoundContext:
///
///     start(context, message)            evaluates, encodes, posts the first phase
///     advance(context, message, block)   settles the phase under way, posts the next; true when all is here
///     consume(context, consumer)         decodes: consumer(piece, i, mean) once for each element
///     most_bytes(context)                what this rank sends in a round, at most
///     notes(executor)                    of exact ones without ForDense: squared norm of the full-precision part of the mean,
///                                        alike on all ranks, for clipping: from the notes of packets, see note_of
///     walk(visit)                        optional: state of its own, such as the second stage's error
///     static work_bytes(context)         optional, or (context, topology): bytes of context.work that it uses from start until advance has said true.
///                                        An exchange that is cut into slices has a round for each, and they take turns there
///
/// What rounds are made of is in terse/topology/round.hpp.
template <class T>
concept Topology = std::copyable<T> && requires {
  { T::exact } -> std::convertible_to<bool>;
  { T::recompresses } -> std::convertible_to<bool>;
};

namespace detail {

/// Of topologies whose rounds are no class of theirs, but made of others' rounds.
template <class T>
inline constexpr bool has_own_rounds = false;

}  // namespace detail

/// Says in words what a type lacks to be a topology.
template <class T>
constexpr bool check_topology() {
  static_assert(std::copyable<T>, "terse: a topology is a value that can be copied");
  static_assert(
      requires {
        { T::exact } -> std::convertible_to<bool>;
      },
      "terse: a topology says whether all ranks get the same mean: `static constexpr bool exact`");
  static_assert(
      requires {
        { T::recompresses } -> std::convertible_to<bool>;
      },
      "terse: a topology says whether it compresses again on the way: `static constexpr bool recompresses`");
  constexpr bool has_round = detail::has_own_rounds<T> || requires {
    typename T::template Round<Dense, None, detail::SomeTransport, SomeExecutor>;
  };
  static_assert(
      has_round,
      "terse: a topology needs a nested `template <Compressor C, ErrorFeedback F, Transport T, Executor E> "
      "class Round`");
  return Topology<T> && has_round;
}

namespace detail {

/// Whether a topology compresses sums of some ranks' messages on the way to the sum of all.
template <class T>
constexpr bool compresses_partial_sums() {
  if constexpr (requires { T::compresses_partial_sums; }) return T::compresses_partial_sums;
  return false;
}
/// Whether it evaluates messages in other phases than the first.
template <class T>
constexpr bool evaluates_late() {
  if constexpr (requires { T::evaluates_late; }) return T::evaluates_late;
  return false;
}

}  // namespace detail

namespace detail {

/// Whether it carries full-precision packets alone, though the compressor has no round of its own.
template <class C, class T>
constexpr bool carries_no_packets() {
  if constexpr (
      requires { T::full_precision_only; } && requires { typename C::Incoming; })
    return T::full_precision_only && !C::lossless;
  return false;
}

/// Whether it has a compressor of its own for a part of the way.
template <class T>
constexpr bool compresses_within() {
  if constexpr (requires { T::compresses_within; }) return T::compresses_within;
  return false;
}

}  // namespace detail

/// Whether this topology may carry this pair's packets.
template <class C, class F, class T>
constexpr bool check_stages() {
  static_assert(
      !C::lossless || !detail::compresses_within<T>(),
      "terse: Within compresses within nodes what is compressed between them, and this optimizer has no "
      "compressor. Give it one, or write Hierarchical<ScatterGather, ...>");
  static_assert(
      !detail::carries_no_packets<C, T>(),
      "terse: a transport's own collectives add floats, so that Native is for what is not compressed: "
      "write Hierarchical<Native, ScatterGather> to compress between nodes");
  constexpr bool any = Traits<C>::unchecked || Traits<F>::unchecked;
  static_assert(
      any || !T::recompresses || !Traits<F>::single_stage,
      "terse: this error feedback (Difference, Controlled) needs the mean of the packets as it is, and this "
      "topology compresses it "
      "again. Use AllGather");
  static_assert(any || !T::recompresses || !Traits<C>::single_stage,
                "terse: this compressor scales what it picks (RandomK, unbiased), so that applying it again "
                "to the mean would "
                "scale twice. Use AllGather, or RandomK without the scaling");
  return true;
}

namespace detail {

struct IgnoreSum {
  TERSE_HD void operator()(const Piece&, index_t, bool, float) const {}
};

}  // namespace detail

/// What ranks of a channel are called in errors: those of a channel within a larger world by their ranks there.
struct RankNames {
  int first = 0;   ///< what rank 0 is called
  int stride = 1;  ///< from a rank to the next
  int operator()(int rank) const { return first + stride * rank; }
};

/// Everything a round works with: the executor, the channel, the layout, the plan, this rank's codec, and the step's envelope.
/// Channel, layout and envelope are others', who may have them serve several rounds.
template <Compressor C, ErrorFeedback F, Transport T, Executor E>
struct RoundContext {
  E executor;
  T& channel;
  int rank, size;
  RankNames names;
  F feedback;
  const Layout& layout;
  Plan plan;
  Codec<C, F, E> codec;
  std::byte* work = nullptr;  ///< as many bytes as the round asks for, in the executor's memory

  // Of the round under way.
  std::uint64_t step = 0;           ///< counts from 1
  std::uint64_t check = 0;          ///< what packets of this step must agree on
  float rate = 0;                   ///< for error feedbacks that follow it
  Mask<typename E::memory> mask{};  ///< which elements take part
  bool dense_only = false;          ///< the compressed part of the mean is not consumed
  bool checks_payload = false;      ///< packets have a checksum of all that is in them
  /// Of what this rank sends first.
  EncodeContext first = encode_context(0, 0, 0, Purpose::quantization, nullptr);
  EncodeContext second = first;  ///< of what it compresses again
  Envelope<E>& envelope;

  TERSE_COLD RoundContext(E executor_, T& channel_, Envelope<E>& envelope_, const C& compressor,
                          const F& feedback_, const Layout& layout_, Plan plan_, RankNames names_ = {},
                          typename F::template State<E>* lent = nullptr)
      : executor(executor_),
        channel(channel_),
        rank(channel.rank()),
        size(channel.size()),
        names(names_),
        feedback(feedback_),
        layout(layout_),
        plan(std::move(plan_)),
        codec(executor, compressor, feedback, plan.whole, lent),
        envelope(envelope_) {}

  /// Opens a round.
  void open(std::uint64_t step_, std::uint64_t seed, std::uint64_t agreement, float rate_,
            Mask<typename E::memory> mask_, const StepScalars* now, bool checks_payload_ = false) {
    step = step_;
    checks_payload = checks_payload_;
    check = agreement;
    rate = rate_;
    mask = mask_;
    first = encode_context(seed, rank, step, Purpose::quantization, now);
    second = encode_context(seed, rank, step, Purpose::second_quantization, now);
    envelope.open(executor, {step, check, now, checks_payload}, names(rank));
    codec.start(rate);
  }

  /// If what this codec has encoded was not finite, every packet stamped from here on says so.
  template <class Encoder>
  void note(Encoder& encoder) {
    envelope.note(executor, encoder);
  }

  /// The same where it has encoded what `inbox` brought: then a packet may be why.
  template <class Encoder, class In>
  void note(Encoder& encoder, const Portion& portion, In& inbox) {
    if constexpr (!GridExecutor<E> && std::is_same_v<In, Inbox<C>>)
      if (*encoder.bad() != 0) examine(portion, inbox);
    note(encoder);
  }

  /// Evaluates and encodes the whole message into a packet, unstamped, and returns its bytes.
  template <class M>
  index_t encode_whole(const M& message, std::byte* packet) {
    codec.measure(plan.whole, mask, EmptyInbox{}, message);
    const index_t bytes = codec.encode(plan.whole, mask, EmptyInbox{}, message, first, true, packet);
    note(codec);
    return bytes;
  }

  void stamp(std::byte* packet, index_t bytes, Phase phase, int chunk) {
    envelope.stamp(executor, static_cast<std::uint64_t>(bytes), detail::place_of(phase, chunk, rank), packet);
  }
  /// Checks a packet from `sender` and takes over its flags.
  void accept(const std::byte* packet, const Portion& portion, Phase phase, int chunk, int sender) {
    const auto most = static_cast<std::uint64_t>(portion.bytes);
    const auto least = portion.variable ? static_cast<std::uint64_t>(portion.section_at) : most;
    envelope.accept(executor, codec, portion, packet, least, most, detail::place_of(phase, chunk, sender),
                    names(sender));
  }
  /// For verbs that read packets, see Packets::damage. A rank alone reads what has been nowhere.
  std::uint64_t* damage() { return size > 1 ? envelope.damage() : nullptr; }
  /// Calls act(), whose calls of stamp, or of accept, are one kernel on a device, see Envelope. No packet may come or go in
  /// between.
  template <class Act>
  void together(const Act& act) {
    envelope.together(executor, act);
  }
  /// Adds an accepted packet, or this rank's own, to what a verb will read. Values that are not finite, of which a sender says
  /// nothing, count as 0 there, and are an error that names the sender and the phase.
  void add(Inbox<C>& inbox, const Portion& portion, const std::byte* packet, Phase phase, int sender,
           float weight = 1) {
    // Of what is encoded anew `note` hears, and the host needs to look for a reason then alone.
    inbox.watch(GridExecutor<E> || phase != Phase::reduce ? damage() : nullptr);
    inbox.add(codec.compressor(), portion, packet, first.shared, weight,
              detail::origin_of(phase, names(sender)));
  }

 private:
  /// Looks through packets once more.
  TERSE_COLD void examine(const Portion& portion, Inbox<C>& inbox) {
    inbox.watch(damage());
    for_each(executor, portion.dense, NoMask{}, inbox.dense(), detail::IgnoreSum{});
    if constexpr (!C::lossless) {
      auto incoming = inbox.compressed();
      if constexpr (requires { incoming.damage; }) {
        incoming.damage = damage();
        for_each(executor, portion.compressed, NoMask{}, incoming, detail::IgnoreSum{});
      }
    }
  }

  static EncodeContext encode_context(std::uint64_t seed, int rank, std::uint64_t step, Purpose rounding,
                                      const StepScalars* now) {
    return {step,
            {Draw::local(seed, rank, step, rounding), now},
            {Draw::shared(seed, step, Purpose::selection), now}};
  }
};

namespace detail {

/// A stand-in for what becomes of the mean.
struct SomeConsumer {
  void operator()(const Piece&, index_t, float) const {}
};

}  // namespace detail

/// Says in words what the round of an exact topology lacks. `carries_dense`: no other topology carries its full-precision
/// packets.
template <class Round, class Context, bool carries_dense>
constexpr bool check_round() {
  using M = Message<detail::SomeMessage, detail::SomeMessage>;
  using Consumer = Message<detail::SomeConsumer, detail::SomeConsumer>;
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
      "terse: a topology's Round needs `index_t most_bytes(context) const`, what a rank sends at most");
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

namespace detail {

/// Bytes of a context's `work` that a round wants.
template <class Round, class Context, class P>
index_t work_bytes(const Context& context, const P& topology) {
  if constexpr (requires { Round::work_bytes(context); }) return Round::work_bytes(context);
  if constexpr (requires { Round::work_bytes(context, topology); })
    return Round::work_bytes(context, topology);
  return 0;
}
/// The round of a topology, which may have parameters.
template <class Round, class Context, class P>
Round make_round(Context& context, const P& topology) {
  if constexpr (std::is_constructible_v<Round, Context&, const P&>)
    return Round(context, topology);
  else
    return Round(context);
}

/// Whether a compressor goes by any topology's round.
template <class C>
inline constexpr bool takes_any_round = C::lossless || requires {
  typename C::Incoming;
};

/// The round of C over P: the topology's, unless the compressor has a protocol of its own.
template <class C, class F, class P, class T, class E>
struct RoundOf {
  static_assert(takes_any_round<C>,
                "terse: this compressor has a round of its own; include it (LowRank's is in "
                "terse/exchange/low_rank_round.hpp, Select's in terse/exchange/selected_rounds.hpp, mixing "
                "with Lattice "
                "or Moniqua in terse/exchange/keyed_mixing.hpp)");
  using type = typename P::template Round<C, F, T, E>;
};

}  // namespace detail

}  // namespace terse
