// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "terse/codec.hpp"
#include "terse/topology/envelope.hpp"
#include "terse/transport/concept.hpp"

namespace terse {

/// A topology says who sends which packet to whom. Exact ones give every rank the same mean; those that
/// `recompress` compress sums or means again on the way. It is a policy with a nested `Round<C, F, T, E>`, one
/// for each exchange, which takes all memory at construction and runs over a RoundContext:
///
///     start(context, message)            evaluates, encodes, posts the first phase
///     advance(context, message, block)   settles the phase under way, posts the next; true when all is here
///     consume(context, consumer)         decodes: consumer(piece, i, mean) once for each element
///     notes(executor)                    squared norm of the full-precision part of the mean, alike on all ranks, for
///                                        clipping: from the notes of packets, see note_of
///     walk(visit)                        state of its own, such as the second stage's error
template <class T>
concept Topology = requires {
  { T::exact } -> std::convertible_to<bool>;
  { T::recompresses } -> std::convertible_to<bool>;
};

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

/// Whether this topology may carry this pair's packets.
template <class C, class F, class T>
constexpr bool check_stages() {
  constexpr bool any = Traits<C>::unchecked || Traits<F>::unchecked;
  static_assert(any || !T::recompresses || !Traits<F>::single_stage,
                "terse: Difference needs the mean of the packets as it is, and this topology compresses it "
                "again. Use AllGather");
  static_assert(any || !T::recompresses || !Traits<C>::single_stage,
                "terse: this compressor scales what it picks (RandomK, unbiased), so that applying it again "
                "to the mean would "
                "scale twice. Use AllGather, or RandomK without the scaling");
  return true;
}

/// Everything a round works with: the executor, the channel, the plan, this rank's codec, and the step's
/// envelope.
template <Compressor C, ErrorFeedback F, Transport T, Executor E>
struct RoundContext {
  E executor;
  T channel;
  int rank, size;
  F feedback;
  Layout layout;
  Plan plan;
  Codec<C, F, E> codec;

  // Of the round under way.
  std::uint64_t step = 0;
  std::uint64_t check = 0;
  float rate = 0;
  Mask<typename E::memory> mask{};
  EncodeContext first = encode_context(0, 0, 0, Purpose::quantization, nullptr), second = first;
  Envelope<E> envelope;

  RoundContext(E executor_, T channel_, const C& compressor, const F& feedback_, const Layout& layout_,
               const Range& range, bool note)
      : executor(executor_),
        channel(std::move(channel_)),
        rank(channel.rank()),
        size(channel.size()),
        feedback(feedback_),
        layout(layout_),
        plan(compressor, layout, range, size, note),
        codec(executor, compressor, feedback, plan.whole) {}

  /// Opens a round.
  void open(std::uint64_t step_, std::uint64_t seed, std::uint64_t agreement, float rate_,
            Mask<typename E::memory> mask_, const StepScalars* now) {
    step = step_;
    check = agreement;
    rate = rate_;
    mask = mask_;
    first = encode_context(seed, rank, step, Purpose::quantization, now);
    second = encode_context(seed, rank, step, Purpose::second_quantization, now);
    envelope.open(executor, {step, check, now}, rank);
    codec.start(rate);
  }

  /// If what this codec has encoded was not finite, every packet stamped from here on says so.
  template <class Encoder>
  void note(Encoder& encoder) {
    envelope.note(executor, encoder);
  }

  void stamp(std::byte* packet, index_t bytes, Phase phase, int chunk) {
    envelope.stamp(executor, static_cast<std::uint64_t>(bytes), place_of(phase, chunk, rank), packet);
  }
  /// Checks a packet from `sender` and takes over its flags.
  void accept(const std::byte* packet, const Portion& portion, Phase phase, int chunk, int sender) {
    const auto most = static_cast<std::uint64_t>(portion.bytes);
    const auto least = portion.variable ? static_cast<std::uint64_t>(portion.section_at) : most;
    envelope.accept(executor, codec, portion, packet, least, most, place_of(phase, chunk, sender), sender);
  }
  /// All packets are here. See Envelope for what follows.
  void arrived(bool throws) { envelope.arrived(executor, throws); }
  void settle(std::uint64_t of_step) { envelope.settle(executor, of_step); }

 private:
  static EncodeContext encode_context(std::uint64_t seed, int rank, std::uint64_t step, Purpose rounding,
                                      const StepScalars* now) {
    return {step,
            {Draw::local(seed, rank, step, rounding), now},
            {Draw::shared(seed, step, Purpose::selection), now}};
  }
  /// Which packet of the round this is.
  static std::uint64_t place_of(Phase phase, int chunk, int sender) {
    return static_cast<std::uint64_t>(phase) << 48 | static_cast<std::uint64_t>(chunk) << 24 |
           static_cast<std::uint64_t>(sender);
  }
};

namespace detail {

/// The round of C over P: the topology's, unless the compressor has a protocol of its own.
template <class C, class F, class P, class T, class E>
struct RoundOf {
  static_assert(
      C::lossless || requires { typename C::Incoming; },
      "terse: this compressor has a round of its own; include it (LowRank's is in "
      "terse/exchange/low_rank_round.hpp, mixing with Lattice or Moniqua in "
      "terse/exchange/keyed_mixing.hpp)");
  using type = typename P::template Round<C, F, T, E>;
};

}  // namespace detail

TERSE_NUMERICS_BEGIN

/// The second stage's message: the mean over what came in.
struct MeanOf {
  float weight;
  TERSE_HD float operator()(const Piece&, index_t, float sum) const { return sum * weight; }
  TERSE_HD float operator()(const Piece&, index_t) const { return 0; }
};

/// A rank's message on top of what came in.
template <class F>
struct PlusArrived {
  F message;
  TERSE_HD void enter(const Piece& piece) { terse::enter(message, piece); }
  TERSE_HD float operator()(const Piece& piece, index_t i) const { return message(piece, i); }
  TERSE_HD float operator()(const Piece& piece, index_t i, float sum) const {
    return message(piece, i) + sum;
  }
};

TERSE_NUMERICS_END

/// Whether a batch is done; with `block` it waits until it is.
template <class Ticket>
bool settled(Ticket& ticket, bool block) {
  if (!block) return ticket.ready();
  ticket.wait();
  return true;
}

/// Decodes one or more packets over a portion and hands each element's weighted sum to its consumer.
template <class Context, class C, class Consumer>
void deliver(Context& context, const Portion& portion, Inbox<C>& inbox, float weight,
             const Consumer& consumer) {
  if constexpr (!C::lossless) {
    using View = decltype(context.codec.feedback());
    auto incoming = context.codec.arrived(portion.compressed, inbox);
    if constexpr (requires(View view) { view.receive(index_t{}, true, 0.0F); })
      for_each(context.executor, portion.compressed, context.mask, incoming,
               context.envelope.gated(detail::Deliver<decltype(consumer.compressed), View>{
                   consumer.compressed, weight, context.codec.feedback()}));
    else
      for_each(context.executor, portion.compressed, context.mask, incoming,
               context.envelope.gated(detail::Deliver<decltype(consumer.compressed), detail::AsItIs>{
                   consumer.compressed, weight, {}}));
  }
  for_each(context.executor, portion.dense, Mask<typename decltype(context.executor)::memory>{},
           inbox.dense(),
           context.envelope.gated(
               detail::Deliver<decltype(consumer.dense), detail::AsItIs>{consumer.dense, weight, {}}));
}

/// The note of a packet: the squared norm of its full-precision part. On a device it waits.
template <class E>
double note_of(E executor, const std::byte* packet, const Portion& portion) {
  float note = 0;
  fetch(executor, in<E>(reinterpret_cast<const float*>(packet + portion.note_at), 1), view<float>(&note, 1));
  return static_cast<double>(note);
}

/// The spreading half: packet c, owned by rank (c + shift) mod W, reaches everybody in one batch, unchanged.
template <class T, class E>
class Spread {
 public:
  Spread(std::vector<const Portion*> portions, int rank, int size, int shift)
      : portions_(std::move(portions)), mine_((rank - shift + size) % size), shift_(shift) {
    for (int c = 0; c < size; ++c) packets_.emplace_back(portions_[static_cast<std::size_t>(c)]->bytes);
    for (int c = 0; c < size; ++c) {
      const int owner = (c + shift) % size;
      if (owner == rank) continue;
      const index_t room = portion(mine_).bytes;
      sends_.push_back({owner, packet(mine_), room, room});
      receives_.push_back({owner, packet(c), portion(c).bytes, portion(c).variable});
    }
  }

  int mine() const { return mine_; }
  std::byte* packet(int c) { return packets_[static_cast<std::size_t>(c)].data(); }
  const Portion& portion(int c) const { return *portions_[static_cast<std::size_t>(c)]; }
  int size() const { return static_cast<int>(packets_.size()); }

  /// Sends this rank's packet of `bytes` bytes and receives the others'.
  auto post(T& channel, index_t bytes) {
    for (Send& send : sends_) send.bytes = bytes;
    return channel.exchange(sends_, receives_, Phase::spread);
  }

  template <class Context>
  void accept(Context& context) {
    for (int c = 0; c < size(); ++c)
      if (c != mine_) context.accept(packet(c), portion(c), Phase::spread, c, (c + shift_) % size());
  }

  /// Sum over the packets' notes, in order. On a device it waits.
  double notes(E executor) {
    double sum = 0;
    for (int c = 0; c < size(); ++c) sum += note_of(executor, packet(c), portion(c));
    return sum;
  }

 private:
  std::vector<const Portion*> portions_;
  int mine_, shift_;
  std::vector<buffer<std::byte, typename E::memory>> packets_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

/// A chunk's portions in chunk order, for Spread.
inline std::vector<const Portion*> portions_of(const Plan& plan) {
  std::vector<const Portion*> portions;
  for (const Portion& chunk : plan.chunks) portions.push_back(&chunk);
  return portions;
}

}  // namespace terse
