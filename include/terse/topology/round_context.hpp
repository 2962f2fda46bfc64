// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "terse/codec.hpp"
#include "terse/topology/envelope.hpp"
#include "terse/transport/channel.hpp"

namespace terse {

namespace detail {

struct IgnoreSum {
  using StreamsOf = IgnoreSum;
  TERSE_HD static Streams<> streams() { return {}; }
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
template <Compressor C, ErrorFeedback F, Executor E>
struct RoundContext {
  E executor;
  Channel& channel;
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

  TERSE_COLD RoundContext(E executor_, Channel& channel_, Envelope<E>& envelope_, const C& compressor,
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
  /// Checks a packet from `sender`, which `from`, if not -1, has handed on, and takes over its flags.
  void accept(const std::byte* packet, const Portion& portion, Phase phase, int chunk, int sender,
              int from = -1) {
    const auto most = static_cast<std::uint64_t>(portion.bytes);
    const auto least = portion.variable ? static_cast<std::uint64_t>(portion.section_at) : most;
    envelope.accept(executor, codec, portion, packet, least, most, detail::place_of(phase, chunk, sender),
                    names(sender), name_of(from));
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
  /// nothing, count as 0 there, and are an error that names the phase and the sender, or who
  /// has handed it on.
  void add(Inbox<C>& inbox, const Portion& portion, const std::byte* packet, Phase phase, int sender,
           float weight = 1, int from = -1) {
    // Of what is encoded anew `note` hears, and the host needs to look for a reason then alone.
    inbox.watch(GridExecutor<E> || phase != Phase::reduce ? damage() : nullptr);
    inbox.add(codec.compressor(), portion, packet, first.shared, weight,
              detail::origin_of(phase, names(sender), name_of(from)));
  }

 private:
  int name_of(int from) const { return from < 0 ? from : names(from); }
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

}  // namespace terse
