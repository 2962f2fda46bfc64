// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "terse/executor/factors.hpp"
#include "terse/topology/to_owners.hpp"

// The two halves of ScatterGather as topologies: in between, a rank works with the means of its chunk.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Writes means to a buffer whose first element is the arena's element `begin`.
struct KeepMean {
  float* means;
  index_t begin;
  using StreamsOf = KeepMean;
  TERSE_HD auto streams() { return writes(means, begin); }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const { means[i - begin] = mean; }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// The first half: the means of the elements that a rank owns are written to its `share`, slice by slice as they arrive; `consume` gets
/// none. They are equal to the means of packets that are compressed once. Sends W - 1 messages per rank.
template <CutBy How>
struct MeansToOwners {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  static constexpr CutBy cut = How;
  using ForDense = MeansToOwners;

  float* share = nullptr;           ///< the owned elements of all slices
  std::span<const Moved> places{};  ///< table from the arena to a share, on the host; used at construction

  template <class Visit>
  void settings(Visit&&) const {}

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;

   public:
    TERSE_COLD Round(const Context& context, const MeansToOwners& to)
        : to_owners_(context), keep_{to.share, begin_of(context.own())} {
      if (to.places.empty()) return;
      const Moved& place = find(to.places.data(), static_cast<index_t>(to.places.size()), keep_.begin);
      keep_.means += place.there;
      keep_.begin = place.offset;
    }
    static index_t work_bytes(const Context& context, const MeansToOwners&) {
      return ToOwners<C, F, E>::work_bytes(context);
    }

    template <class M>
    void start(Context& context, const M& message) {
      to_owners_.start(context, message);
    }
    /// Takes the means at once, so that another round can use the memory of the packets.
    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (!to_owners_.arrived(context, block)) return false;
      context.envelope.verify(context.executor);
      to_owners_.take(context, Message{keep_, keep_});
      return true;
    }
    template <class Consumer>
    void consume(Context&, const Consumer&) {}
    index_t most_bytes(const Context&) const { return to_owners_.most_bytes(); }
    double notes(E) { return 0; }

   private:
    static index_t begin_of(const Portion& mine) {
      if (mine.compressed.pieces().empty()) return mine.dense.begin_offset();
      if (mine.dense.pieces().empty()) return mine.compressed.begin_offset();
      return std::min(mine.compressed.begin_offset(), mine.dense.begin_offset());
    }

    ToOwners<C, F, E> to_owners_;
    KeepMean keep_;
  };
};

/// The second half: each rank's message over the elements that it owns goes to all ranks, compressed once. Sends W - 1 messages per
/// rank.
template <CutBy How>
struct SpreadByOwners {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  static constexpr CutBy cut = How;
  static constexpr bool encodes_own = true;
  using ForDense = SpreadByOwners;

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;

   public:
    TERSE_COLD explicit Round(const Context& context) : spread_(context), inbox_(context.size) {}

    template <class M>
    void start(Context& context, const M& message) {
      const Portion& mine = context.own();
      // The size of variable packets is known only on the host.
      if constexpr (Traits<C>::variable) await_messages(context.channel);
      context.codec.measure(mine, context.mask, EmptyInbox{}, message);
      std::byte* const packet = spread_.packet(context.rank);
      const index_t bytes =
          context.codec.encode(mine, context.mask, EmptyInbox{}, message, context.second, false, packet);
      context.note(context.codec);
      context.stamp(packet, bytes, Phase::spread, context.rank);
      under_way_.emplace(spread_.post(context.channel, bytes));
    }
    template <class M>
    bool advance(Context& context, const M&, bool block) {
      return gathered(context, block);
    }
    bool gathered(Context& context, bool block) {
      if (!settled(*under_way_, block)) return false;
      spread_.accept(context);
      return true;
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      spread_.deliver(context, inbox_, 1, consumer);
    }
    index_t most_bytes(const Context&) const { return spread_.most_bytes(); }
    double notes(E executor) { return spread_.notes(executor); }

   private:
    Spread<E> spread_;
    Inbox<C> inbox_;
    std::optional<Channel::Ticket> under_way_;
  };
};

}  // namespace detail

}  // namespace terse
