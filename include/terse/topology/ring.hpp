// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>

#include "terse/topology/round.hpp"

namespace terse {

/// Partial sums travel around the ring and are compressed again in each hop. In hop h rank r takes chunk r - h, adds its own message
/// and error to the received sum, compresses the result and passes it to its successor. Each rank compresses each chunk once, so one
/// error of n elements is enough for all hops. After W - 1 hops rank r owns chunk r + 1, whose packet then goes around the ring once
/// more, unchanged. The mean is the decoded sum times 1 / W; the order of the sum is that of the hops, also in full-precision
/// rounds.
///
/// Sends per rank: 2 (W - 1) packets of a chunk, all to its successor, in 2 (W - 1) phases. Messages are evaluated in each
/// hop, so their inputs must not change until the round has ended.
struct Ring {
  static constexpr bool exact = true;
  static constexpr bool recompresses = true;
  static constexpr bool compresses_partial_sums = true;
  static constexpr bool evaluates_late = true;
  static constexpr bool waits_for_sizes = true;

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    using Context = RoundContext<C, F, E>;

   public:
    TERSE_COLD explicit Round(const Context& context)
        : spread_(context, context.size - 1, before(context)), inbox_(context.size) {
      out_ = context.work;
      in_ = out_ + work_bytes(context) / 2;
    }
    /// Returns the bytes of one outgoing packet and one incoming packet.
    static index_t work_bytes(const Context& context) {
      index_t largest = 0;
      for (const Portion& chunk : context.plan.chunks) largest = std::max(largest, chunk.bytes);
      return 2 * aligned(largest);
    }

    template <class M>
    void start(Context& context, const M& message) {
      hop_ = 0;
      weight_ = 1.0F / static_cast<float>(context.size);
      hop(context, EmptyInbox{}, message);
    }

    template <class M>
    bool advance(Context& context, const M& message, bool block) {
      if (hop_ >= context.size) return gathered(context, block);
      if (!reduced(context, message, block)) return false;
      forward(context, chunk(context), sum_bytes_);
      return false;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      spread_.deliver(context, inbox_, weight_, consumer);
    }

    // The halves of the round, see Hierarchical.

    static int own_chunk(int rank, int size) { return (rank + 1) % size; }
    template <class M>
    bool reduced(Context& context, const M& message, bool block) {
      if (hop_ == context.size) return true;
      if (!settled(*under_way_, block)) return false;
      const int c = behind(context, hop_);
      context.accept(in_, portion(context, c), Phase::reduce, c, before(context));
      inbox_.clear();
      context.add(inbox_, portion(context, c), in_, Phase::reduce, before(context));
      hop(context, inbox_, message);
      return hop_ == context.size;
    }
    template <class Consumer>
    void take(Context& context, const Consumer& consumer) {
      const int c = chunk(context);
      inbox_.clear();
      context.add(inbox_, spread_.portion(c), spread_.packet(c), Phase::spread, context.rank);
      deliver(context, spread_.portion(c), inbox_, weight_, consumer);
    }
    template <class M>
    void spread(Context& context, const M& message) {
      hop_ = context.size;
      weight_ = 1;
      encode(context, EmptyInbox{}, message, chunk(context), true);
      if (context.size > 1) forward(context, chunk(context), sum_bytes_);
    }
    bool gathered(Context& context, bool block) {
      if (context.size == 1) return true;
      if (!settled(*under_way_, block)) return false;
      const int c = behind(context, hop_ - context.size);
      context.accept(spread_.packet(c), spread_.portion(c), Phase::spread, c, owner(context, c),
                     before(context));
      if (++hop_ == 2 * context.size - 1) return true;
      forward(context, c, context.bytes_of(spread_.packet(c), spread_.portion(c)));
      return false;
    }

    index_t most_bytes(const Context& context) const {
      return most_bytes_behind(context, 0) + most_spread_bytes(context);
    }

    index_t most_spread_bytes(const Context& context) const {
      return most_bytes_behind(context, context.size - 1);
    }

    /// Returns the squared norm of the dense part of the mean, equal on all ranks; packets may contain sums.
    double notes(E executor) {
      const double ranks = weight_ < 1 ? spread_.size() : 1;
      return spread_.notes(executor) / (ranks * ranks);
    }

   private:
    /// Returns the number of the chunk `steps` before this rank's own number.
    static int behind(const Context& context, int steps) {
      return (context.rank + 2 * context.size - steps) % context.size;
    }
    static int before(const Context& context) { return behind(context, 1); }
    static int after(const Context& context) { return (context.rank + 1) % context.size; }
    static int chunk(const Context& context) { return own_chunk(context.rank, context.size); }
    static int owner(const Context& context, int c) { return (c + context.size - 1) % context.size; }
    static const Portion& portion(const Context& context, int c) {
      return context.plan.chunks[static_cast<std::size_t>(c)];
    }

    /// Returns the bytes of the W - 1 chunks that this rank forwards, starting with the one `first` before its own number.
    static index_t most_bytes_behind(const Context& context, int first) {
      index_t bytes = 0;
      for (int hop = 0; hop + 1 < context.size; ++hop)
        bytes += portion(context, behind(context, first + hop)).bytes;
      return bytes;
    }

    /// Compresses this hop's chunk and passes it to the successor, except the last one, whose sum is complete.
    template <class In, class M>
    void hop(Context& context, In&& inbox, const M& message) {
      const int c = behind(context, hop_);
      const bool last = ++hop_ == context.size;
      const index_t bytes = encode(context, inbox, message, c, last);
      if (last) return;
      const Portion& next = portion(context, behind(context, hop_));
      pass(context, {after(context), out_, bytes, portion(context, c).bytes},
           {before(context), in_, next.bytes, next.variable}, Phase::reduce);
    }
    /// Encodes the packet of chunk c: a partial sum, or the packet that is sent to all ranks.
    template <class In, class M>
    index_t encode(Context& context, In&& inbox, const M& message, int c, bool whole) {
      std::byte* packet = whole ? spread_.packet(c) : out_;
      const index_t bytes = context.encode_sum(portion(context, c), inbox, message, packet);
      context.stamp(packet, bytes, whole ? Phase::spread : Phase::reduce, c);
      if (whole) sum_bytes_ = bytes;
      return bytes;
    }
    /// Forwards a complete sum and receives the next one.
    void forward(Context& context, int c, index_t bytes) {
      const int next = (c + context.size - 1) % context.size;
      pass(context, {after(context), spread_.packet(c), bytes, spread_.portion(c).bytes},
           {before(context), spread_.packet(next), spread_.portion(next).bytes,
            spread_.portion(next).variable},
           Phase::spread);
    }
    void pass(Context& context, const Send& send, const Receive& receive, Phase phase) {
      send_ = send;
      receive_ = receive;
      under_way_.emplace(context.channel.exchange({&send_, 1}, {&receive_, 1}, phase));
    }
    Spread<E> spread_;
    Inbox<C> inbox_;
    std::byte *out_, *in_;  // in the context's work memory
    Send send_;
    Receive receive_;
    std::optional<Channel::Ticket> under_way_;
    int hop_ = 0;
    index_t sum_bytes_ = 0;  // of the packet that this rank sends to all
    float weight_ = 1;       // of packets in the mean
  };
};

}  // namespace terse
