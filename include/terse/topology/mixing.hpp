// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "terse/core/vector.hpp"
#include "terse/graph/named.hpp"
#include "terse/topology/round.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Passes own value and difference to a consumer, for pieces in full precision.
template <class F>
struct MixExact {
  F consume;

  using StreamsOf = MixExact;
  TERSE_HD auto streams() requires NamesStreams<F> { return consume.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(consume, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool, float own, float difference) const {
    consume(piece, i, own, difference);
  }
};

/// Passes a compressed element's difference, which includes this rank's own packet, to a consumer, without the error
/// feedback.
template <class F, class View>
struct MixDecoded {
  F consume;
  View feedback;

  using StreamsOf = MixDecoded;
  TERSE_HD auto streams() requires(NamesStreams<F> && !ReceivesMeans<const View>) {
    return consume.streams();
  }
  TERSE_HD auto streams() requires(NamesStreams<F>&& NamesStreams<View>&& ReceivesMeans<const View>) {
    return consume.streams() + received(feedback);
  }
  TERSE_HD void enter(const Piece& piece) { terse::enter(consume, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, float sum) const {
    if constexpr (ReceivesMeans<const View>)
      consume(piece, i, feedback.receive(i, keep, keep_if(keep, sum)));
    else
      consume(piece, i, keep_if(keep, sum));
  }
};

/// Passes this rank's own packet, as decoded by the neighbours, to a consumer.
template <class F>
struct TakeOwn {
  F consume;

  using StreamsOf = TakeOwn;
  TERSE_HD auto streams() requires(NamesStreams<F>&& requires(F& f) { f.own_streams(); }) {
    return consume.own_streams();
  }
  TERSE_HD void enter(const Piece& piece) { terse::enter(consume, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, float decoded) const {
    consume.own(piece, i, keep_if(keep, decoded));
  }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// The messages of a round between neighbours: a rank's own, and one from each rank in its row of W. The constructor
/// takes all memory, with `room` bytes for a message.
template <class G, class E>
class Neighborhood {
  using Bytes = buffer<std::byte, typename E::memory>;

 public:
  Neighborhood(const G& graph, const Channel& channel, index_t room)
      : graph_(graph),
        rank_(channel.rank()),
        size_(channel.size()),
        room_(room),
        stride_(channel.packet_room(room)),
        own_(room, uninitialized) {
    graph_.check(size_);
    edges_.reserve(static_cast<std::size_t>(size_));
    receivers_.reserve(static_cast<std::size_t>(size_));
    sends_.reserve(static_cast<std::size_t>(size_));
    receives_.reserve(static_cast<std::size_t>(size_));
    if constexpr (G::fixed) look_around(0);
    // Adjacent in memory, so that they can be copied together.
    in_ = Bytes(most() * stride_, uninitialized);
  }

  /// Sends `bytes` bytes of own() to the receivers of round `round`, in one batch with the messages received from the edges.
  void post(Channel& channel, std::uint64_t round, index_t bytes, bool variable) {
    if constexpr (!G::fixed) look_around(round);
    sends_.clear();
    receives_.clear();
    for (const int peer : receivers_) sends_.push_back({peer, own_.data(), bytes, room_});
    for (std::size_t e = 0; e < edges_.size(); ++e)
      receives_.push_back({edges_[e].peer, from(e), room_, variable});
    under_way_.emplace(channel.exchange(sends_, receives_, Phase::spread));
  }
  bool settle(bool block) { return settled(*under_way_, block); }

  /// Returns the largest number of bytes that this rank sends in a round.
  index_t most_bytes() const {
    return room_ * (G::fixed ? static_cast<index_t>(receivers_.size()) : static_cast<index_t>(most()));
  }

  /// Returns the largest number of edges in a round.
  int most() const {
    if constexpr (G::fixed)
      return static_cast<int>(edges_.size());
    else if constexpr (requires { graph_.most_neighbors(size_); })
      return graph_.most_neighbors(size_);
    else
      return size_ - 1;
  }
  /// Returns the round's edges, in order of peers.
  const std::vector<graph::Edge>& edges() const { return edges_; }
  std::byte* own() { return own_.data(); }
  std::byte* from(std::size_t edge) { return in_.data() + static_cast<index_t>(edge) * stride_; }

 private:
  void look_around(std::uint64_t round) {
    graph_.row(rank_, size_, round, edges_);
    graph_.receivers(rank_, size_, round, receivers_);
  }

  G graph_;
  int rank_, size_;
  index_t room_, stride_;
  Bytes own_, in_;  // in_: by edge
  std::vector<graph::Edge> edges_;
  std::vector<int> receivers_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::optional<Channel::Ticket> under_way_;
};

}  // namespace detail

/// Neighbours in a graph exchange packets, and each rank computes the difference between the weighted mean and its own z:
///
///     difference_i = sum_j W_ij (z_j - z_i)
///
/// which is exactly 0 if all z are equal and nothing is compressed. For compressed packets z_j and z_i are the decoded values,
/// equal on all ranks, so that a doubly stochastic W keeps the mean of the ranks. A message has `Vectors` vectors that are
/// sent together, message.vector(Vector<k>{}), each with a functor for compressed and dense pieces. The consumer likewise has
/// for each of them, in order,
///
///     dense(piece, i, own, difference)      compressed(piece, i, difference)
///     compressed.own(piece, i, decoded)     called before, if consumer.takes_own: the own packet as decoded
///
/// and, if compressed names its streams, the streams of `own` as own_streams().
///
/// Sends `Vectors` packets as one message to each neighbour, in one batch. Memory: one message, and one for each
/// neighbour from which this rank receives.
template <class G, int Vectors = 1>
struct Mixing {
  static_assert(graph::check_graph<G>());
  static constexpr bool exact = false;
  static constexpr bool recompresses = false;
  using Graph = G;
  template <int Count>
  using With = Mixing<G, Count>;
  template <class Other>
  using On = Mixing<Other, Vectors>;

  G graph{};  ///< the neighbours of each rank and their weights

  /// Returns this topology for another number of vectors.
  template <int Count>
  With<Count> with() const {
    return {graph};
  }
  /// Returns the number of the graph's nodes.
  static int nodes(int size) { return size; }
  template <class Visit>
  void settings(Visit&& visit) const {
    graph::visit_settings(graph, visit);
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    static_assert(Vectors == 1 || !Traits<C>::variable,
                  "terse: two vectors that travel together need a compressor with packets of a fixed size");
    using Context = RoundContext<C, F, E>;

   public:
    Round(Context& context, const Mixing& topology)
        : neighbors_(topology.graph, context.channel, Vectors * context.plan.whole.bytes) {
      for (int k = 1; k < Vectors; ++k)
        others_.emplace_back(context.executor, context.codec.compressor(), context.feedback,
                             context.plan.whole);
      for (int k = 0; k < Vectors; ++k) inboxes_.emplace_back(neighbors_.most() + 1);
    }

    template <class M>
    void start(Context& context, const M& message) {
      const index_t bytes = encode(context, message, std::make_integer_sequence<int, Vectors>{});
      neighbors_.post(context.channel, context.step - 1, bytes, context.plan.whole.variable);
    }

    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (!neighbors_.settle(block)) return false;
      context.together([&] {
        for (std::size_t e = 0; e < edges().size(); ++e)
          for (int k = 0; k < Vectors; ++k)
            context.accept(packet(neighbors_.from(e), k, context), context.plan.whole, Phase::spread, k,
                           edges()[e].peer);
      });
      return true;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      consume(context, consumer, std::make_integer_sequence<int, Vectors>{});
    }

    index_t most_bytes(const Context&) const { return neighbors_.most_bytes(); }

    template <class Visit>
    void walk(Visit&& visit) {
      for (Codec<C, F, E>& codec : others_)
        codec.walk([&](const std::string& name, auto&&... rest) {
          visit("second_" + name, std::forward<decltype(rest)>(rest)...);
        });
    }

   private:
    const std::vector<graph::Edge>& edges() const { return neighbors_.edges(); }
    static std::byte* packet(std::byte* message, int k, const Context& context) {
      return message + k * context.plan.whole.bytes;
    }
    Codec<C, F, E>& codec(Context& context, int k) {
      return k == 0 ? context.codec : others_[static_cast<std::size_t>(k - 1)];
    }

    /// Encodes all vectors. Returns the bytes of the message.
    template <class M, int... K>
    index_t encode(Context& context, const M& message, std::integer_sequence<int, K...>) {
      const index_t bytes[] = {encode(context, codec(context, K), message.vector(Vector<K>{}), K)...};
      for (int k = 0; k < Vectors; ++k) context.note(codec(context, k));
      index_t total = 0;
      context.together([&] {
        for (int k = 0; k < Vectors; ++k) {
          context.stamp(packet(neighbors_.own(), k, context), bytes[k], Phase::spread, k);
          total += bytes[k];
        }
      });
      return total;
    }
    template <class M>
    index_t encode(Context& context, Codec<C, F, E>& codec, const M& message, int k) {
      const Portion& whole = context.plan.whole;
      if (k > 0) {
        codec.set_compressor(context.codec.compressor());
        codec.start(context.rate);
      }
      codec.measure(whole, context.mask, EmptyInbox{}, message);
      return codec.encode(whole, context.mask, EmptyInbox{}, message, k == 0 ? context.first : context.second,
                          true, packet(neighbors_.own(), k, context));
    }

    template <class Consumer, int... K>
    void consume(Context& context, const Consumer& consumer, std::integer_sequence<int, K...>) {
      (consume(context, codec(context, K), consumer.vector(Vector<K>{}), K), ...);
    }
    template <class Consumer>
    void consume(Context& context, Codec<C, F, E>& codec, const Consumer& consumer, int k) {
      const Portion& whole = context.plan.whole;
      Inbox<C>& inbox = inboxes_[static_cast<std::size_t>(k)];
      inbox.clear();
      if constexpr (!C::lossless) {
        if constexpr (Consumer::takes_own) {
          context.add(inbox, whole, packet(neighbors_.own(), k, context), Phase::spread, context.rank);
          for_each(
              context.executor, whole.compressed, context.mask, codec.arrived(whole.compressed, inbox),
              context.envelope.gated(detail::TakeOwn<decltype(consumer.compressed)>{consumer.compressed}));
          inbox.clear();
        }
      }
      float sum = 0;
      for (const graph::Edge& edge : edges()) sum += static_cast<float>(edge.weight);
      context.add(inbox, whole, packet(neighbors_.own(), k, context), Phase::spread, context.rank, -sum);
      for (std::size_t e = 0; e < edges().size(); ++e)
        context.add(inbox, whole, packet(neighbors_.from(e), k, context), Phase::spread, edges()[e].peer,
                    static_cast<float>(edges()[e].weight));
      if constexpr (!C::lossless)
        for_each(context.executor, whole.compressed, context.mask, codec.arrived(whole.compressed, inbox),
                 context.envelope.gated(
                     detail::MixDecoded<decltype(consumer.compressed), decltype(codec.feedback())>{
                         consumer.compressed, codec.feedback()}));
      for_each(context.executor, whole.dense, NoMask{}, Differences<Dense::Code>{inbox.dense()},
               context.envelope.gated(detail::MixExact<decltype(consumer.dense)>{consumer.dense}));
    }

    detail::Neighborhood<G, E> neighbors_;
    std::vector<Codec<C, F, E>> others_;  // codecs of all vectors but the first
    std::vector<Inbox<C>> inboxes_;
  };
};

/// The default: fixed and symmetric, as DecentLaM requires, with 2 log2 W - 1 neighbours and a spectral gap that falls
/// little as W grows.
using Gossip = Mixing<graph::SymmetricExponential>;

}  // namespace terse
