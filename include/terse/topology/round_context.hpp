// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "terse/codec.hpp"
#include "terse/topology/envelope.hpp"
#include "terse/transport/assembly.hpp"
#include "terse/transport/channel.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A rank's message plus the received sum.
template <class F>
struct PlusArrived {
  F message;
  using StreamsOf = PlusArrived;
  TERSE_HD auto streams() requires NamesStreams<F> { return message.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(message, piece); }
  TERSE_HD float operator()(const Piece& piece, index_t i) const { return message(piece, i); }
  TERSE_HD float operator()(const Piece& piece, index_t i, float sum) const {
    return message(piece, i) + sum;
  }
  TERSE_HD void sent(index_t i, bool keep, float decoded) const requires requires(const F& f, index_t k) {
    f.sent(k, true, 0.0F);
  }
  { message.sent(i, keep, decoded); }
};

/// Returns the message whose functors, compressed and dense, add the sums of an inbox.
template <class Compressed, class Exact, class In>
auto plus_arrived(const Message<Compressed, Exact>& message, const In&) {
  if constexpr (std::is_same_v<In, EmptyInbox>)
    return message;
  else
    return Message{PlusArrived<Compressed>{message.compressed}, PlusArrived<Exact>{message.dense}};
}

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

struct IgnoreSum {
  using StreamsOf = IgnoreSum;
  TERSE_HD static Streams<> streams() { return {}; }
  TERSE_HD void operator()(const Piece&, index_t, bool, float) const {}
};

/// The names of a channel's ranks in errors: their numbers in a larger world.
struct RankNames {
  int first = 0;   ///< name of rank 0
  int stride = 1;  ///< step from a rank's name to the next
  int operator()(int rank) const { return first + stride * rank; }
};

}  // namespace detail

/// The parts that a round uses: the executor, the channel, the layout, the plan, this rank's codec, and the step's envelope.
/// Channel, layout and envelope belong to the caller and may serve several rounds.
template <Compressor C, ErrorFeedback F, Executor E>
struct RoundContext {
  /// The type of `names`, for a Round that keeps a copy for `notes`.
  using RankNames = detail::RankNames;

  E executor;
  Channel& channel;
  int rank, size;
  RankNames names;  ///< names(rank) is the name of a rank in errors: in a hierarchy its rank in the world
  F feedback;
  const Layout& layout;
  Plan plan;
  Codec<C, F, E> codec;
  std::byte* work = nullptr;  ///< as many bytes as the round requires, in the executor's memory

  // Properties of the round in progress.
  std::uint64_t step = 0;           ///< counts from 1
  std::uint64_t check = 0;          ///< hash on which all packets of this step must agree
  float rate = 0;                   ///< learning rate, for error feedbacks that follow it
  Mask<typename E::memory> mask{};  ///< the elements that take part
  bool dense_only = false;          ///< the compressed part of the mean is not consumed
  bool checks_payload = false;      ///< packets have a checksum of their whole content
  /// The context for this rank's first compression.
  EncodeContext first = encode_context(0, 0, 0, Purpose::quantization, nullptr);
  EncodeContext second = first;  ///< the context for compressing again
  Envelope<E>& envelope;

  TERSE_COLD RoundContext(E executor_, Channel& channel_, Envelope<E>& envelope_, const C& compressor,
                          const F& feedback_, const Layout& layout_, Plan plan_,
                          detail::RankNames names_ = {}, typename F::template State<E>* lent = nullptr)
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

  /// Returns the chunk that this rank owns, where ranks own the chunks of their number.
  const Portion& own() const { return plan.chunks[static_cast<std::size_t>(rank)]; }

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

  /// From now on, marks every stamped packet if the values that this codec has encoded were not finite.
  template <class Encoder>
  void note(Encoder& encoder) {
    envelope.note(executor, encoder);
  }

  /// Marks packets as above, for values encoded from `inbox`: a received packet may be the cause.
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
  /// Evaluates the message over `portion`, adds the sums of the packets in `inbox`, compresses the result with this rank's error, and
  /// returns the bytes of the packet, unstamped. It is for topologies that compress partial sums.
  template <class In, class M>
  index_t encode_sum(const Portion& portion, In&& inbox, const M& message, std::byte* packet) {
    const auto sum = detail::plus_arrived(message, inbox);
    // The size of variable packets is counted on the host.
    if constexpr (Traits<C>::variable) detail::await_messages(channel);
    codec.measure(portion, mask, inbox, sum);
    const index_t bytes = codec.encode(portion, mask, inbox, sum, first, false, packet);
    note(codec, portion, inbox);
    return bytes;
  }
  /// Returns the bytes of a received packet, to be forwarded; if its size varies, waits for its header.
  index_t bytes_of(const std::byte* packet, const Portion& portion) {
    if constexpr (Traits<C>::variable) {
      PacketHeader header;
      detail::await_messages(channel);
      fetch(executor, view<const std::byte, typename E::memory>(packet, sizeof header),
            view<std::byte>(reinterpret_cast<std::byte*>(&header), sizeof header));
      // A device checks headers later, so the header may still be corrupt at this point.
      return std::clamp(static_cast<index_t>(header.length), portion.section_at, portion.bytes);
    } else {
      return portion.bytes;
    }
  }

  void stamp(std::byte* packet, index_t bytes, Phase phase, int chunk) {
    envelope.stamp(executor, static_cast<std::uint64_t>(bytes), detail::place_of(phase, chunk, rank), packet);
  }
  /// Checks a packet from `sender`, which `from`, if not -1, has forwarded, and takes over its flags.
  void accept(const std::byte* packet, const Portion& portion, Phase phase, int chunk, int sender,
              int from = -1) {
    const auto most = static_cast<std::uint64_t>(portion.bytes);
    const auto least = portion.variable ? static_cast<std::uint64_t>(portion.section_at) : most;
    envelope.accept(executor, codec, portion, packet, least, most, detail::place_of(phase, chunk, sender),
                    names(sender), name_of(from));
  }
  /// Returns the place for damage found by verbs that read packets, see Packets::damage. A single rank reads only its own packets.
  std::uint64_t* damage() { return size > 1 ? envelope.damage() : nullptr; }
  /// Calls act(). On a device, all its calls of stamp, or of accept, run as one kernel, see Envelope. No packet may be sent
  /// or received within act().
  template <class Act>
  void together(const Act& act) {
    envelope.together(executor, act);
  }
  /// Adds an accepted packet, or this rank's own, to the inbox of a verb. There, values that are not finite, without a flag
  /// of the sender, count as 0. They are an error that names the phase and the sender, or the rank that has forwarded the
  /// packet.
  void add(Inbox<C>& inbox, const Portion& portion, const std::byte* packet, Phase phase, int sender,
           float weight = 1, int from = -1) {
    // For values that are encoded again, `note` records this, so the host looks for the cause only after that.
    inbox.watch(GridExecutor<E> || phase != Phase::reduce ? damage() : nullptr);
    inbox.add(codec.compressor(), portion, packet, first.shared, weight,
              detail::origin_of(phase, names(sender), name_of(from)));
  }

 private:
  int name_of(int from) const { return from < 0 ? from : names(from); }
  /// Reads the packets a second time to find the damaged one.
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

}  // namespace terse
