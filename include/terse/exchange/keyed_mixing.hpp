// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "terse/compressor/keyed.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/exchange/exchange.hpp"
#include "terse/topology/mixing.hpp"
#include "terse/transport/assembly.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Stores a rank's own packet as decoded, and resets the difference.
struct KeepOwn {
  float *own, *difference;
  index_t begin;
  TERSE_HD void operator()(const Piece&, index_t i, float y) const {
    own[i - begin] = y;
    difference[i - begin] = 0;
  }
};

/// Adds a neighbour's difference.
struct AddDifference {
  const float* own;
  float* difference;
  float weight;
  index_t begin;
  TERSE_HD void operator()(const Piece&, index_t i, float y) const {
    difference[i - begin] += weight * (y - own[i - begin]);
  }
};

/// KeepOwn and AddDifference for several packets; the first one is this rank's own.
struct AddDifferences {
  float *own, *difference;
  index_t begin;
  TERSE_HD void operator()(const Piece& piece, index_t i, float y, int number, float weight) const {
    if (number == 0)
      KeepOwn{own, difference, begin}(piece, i, y);
    else
      AddDifference{own, difference, weight, begin}(piece, i, y);
  }
};

/// Compressors with which a device decodes several packets by one kernel.
template <class C, class E, class Key>
concept ReadsTogether = GridExecutor<E> &&
    requires(const C& compressor, E executor, const Range& range, const KeyedPackets& packets, const Key& key,
             const AddDifferences& use, std::uint32_t* wrong) {
  compressor.decode_together(executor, range, packets, key, use, wrong);
};

template <class F>
struct MixKept {
  F consume;
  const float* difference;
  index_t begin;
  using StreamsOf = MixKept;
  TERSE_HD auto streams() requires NamesStreams<F> { return consume.streams() + reads(difference, begin); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(consume, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool) const {
    consume(piece, i, difference[i - begin]);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// Mixing with keyed compressors (Moniqua, Lattice). A packet's z_j can be decoded only by ranks whose own z, the key, is
/// near:
///
///     y_j = z_j's packet decoded with key z_i        difference_i = sum_j W_ij (y_j - y_i)
///
/// Like all other ranks, this rank decodes y_i from its packet, so a doubly stochastic W keeps the mean of the ranks. The
/// difference is exactly 0 if all z are equal. Excluded segments are sent in full precision.
///
/// Throws wire_error, with nothing consumed, if a packet can't be decoded with this rank's z, because the distance exceeds
/// the compressor's bound. On a device `settle` throws it, like other errors. The message is evaluated once to be sent and
/// once for each packet that is read, so it must not change in between. Memory, in addition to the messages: two floats for
/// each element. Grid executors need terse/device.hpp.
template <Compressor C, class F, graph::Graph G, int Vectors, Executor E>
requires(Traits<C>::keyed) class Rounds<C, F, Mixing<G, Vectors>, E> {
  static_assert(Vectors == 1,
                "terse: keyed compressors (Moniqua, Lattice) are for methods that mix one vector; Ef21 "
                "or Residual serve those with two");
  static_assert(std::is_same_v<F, NoErrorFeedback>,
                "terse: a keyed compressor (Moniqua, Lattice) needs no error feedback: its error is below a "
                "bound that does not depend on the message's size. Use NoErrorFeedback");
  static_assert(!TeamExecutor<E>, "terse: keyed compressors have no parallel form: take executor::host");
  // The context of the uncompressed elements, and of the whole packets.
  using Context = RoundContext<Dense, NoErrorFeedback, E>;

 public:
  Rounds(E executor, Channel& transport, const C& compressor, const F& feedback, const Layout& layout,
         const Range& range, bool, const Mixing<G, Vectors>& topology)
      : channel_(transport.split(0, transport.rank())),
        layout_(layout),
        context_(executor, channel_, envelope_, Dense{}, feedback, layout_,
                 Plan(Dense{}, layout, range, transport.size(), false)),
        compressor_(compressor),
        plan_(compressor, layout, range, 1, false),
        neighbors_(topology.graph, channel_, whole().bytes),
        inbox_(neighbors_.most() + 1),
        begin_(whole().compressed.begin_offset()),
        own_(whole().compressed.end_offset() - begin_, uninitialized),
        difference_(own_.size(), uninitialized),
        wrong_(most_packets) {}

  void open(const StepContext& step, Mask<typename E::memory> mask) {
    context_.open(step.step, step.seed, step.agreement, step.learning_rate, mask, step.now,
                  step.checks_payload);
  }
  template <class M>
  void start(const M& message) {
    const auto sent = message.vector(Vector<0>{});
    std::byte* packet = neighbors_.own();
    compressor_.encode(context_.executor, whole().compressed, sent.compressed, context_.first,
                       packet + whole().section_at, *context_.codec.bad());
    context_.codec.encode(whole(), context_.mask, EmptyInbox{}, sent, context_.first, true, packet);
    context_.note(context_.codec);
    context_.stamp(packet, whole().bytes, Phase::spread, 0);
    neighbors_.post(channel_, context_.step - 1, whole().bytes, false);
  }
  template <class M>
  bool advance(const M&, bool block) {
    if (!neighbors_.settle(block)) return false;
    context_.together([&] {
      for (std::size_t e = 0; e < edges().size(); ++e)
        context_.accept(neighbors_.from(e), whole(), Phase::spread, 0, edges()[e].peer);
    });
    return true;
  }
  void arrived(bool throws) { envelope_.arrived(context_.executor, throws); }
  /// Decodes all packets with this rank's own message as the key.
  template <class M>
  void read(const M& message) {
    const auto key = message.vector(Vector<0>{}).compressed;
    if constexpr (ReadsTogether<C, E, decltype(key)>) return read_together(key);
    decode(neighbors_.own(), context_.rank, key, KeepOwn{own_.data(), difference_.data(), begin_});
    for (std::size_t e = 0; e < edges().size(); ++e)
      decode(neighbors_.from(e), edges()[e].peer, key,
             AddDifference{own_.data(), difference_.data(), static_cast<float>(edges()[e].weight), begin_});
  }
  template <class Consumer>
  void consume(const Consumer& consumer) {
    const auto outcome = consumer.vector(Vector<0>{});
    for_each(context_.executor, whole().compressed, NoMask{}, NoPackets{},
             gated(MixKept<decltype(outcome.compressed)>{outcome.compressed, difference_.data(), begin_}));
    inbox_.clear();
    context_.add(inbox_, whole(), neighbors_.own(), Phase::spread, context_.rank);
    for (std::size_t e = 0; e < edges().size(); ++e)
      context_.add(inbox_, whole(), neighbors_.from(e), Phase::spread, edges()[e].peer,
                   static_cast<float>(edges()[e].weight));
    for_each(context_.executor, whole().dense, NoMask{}, Differences<Dense::Code>{inbox_.dense()},
             gated(MixExact<decltype(outcome.dense)>{outcome.dense}));
  }
  template <class Functor>
  auto gated(const Functor& f) const {
    return envelope_.gated(f);
  }
  void settle(std::uint64_t step) {
    await_messages(channel_);
    envelope_.settle(context_.executor, step);
  }
  index_t most_bytes(bool) const { return neighbors_.most_bytes(); }

  const Range& compressed() const { return whole().compressed; }
  void set_compressor(const C& compressor) { compressor_ = compressor; }
  /// Visits nothing: there is no state.
  template <class Visit>
  void walk(Visit&&) {}

 private:
  const Portion& whole() const { return plan_.whole; }
  const std::vector<graph::Edge>& edges() const { return neighbors_.edges(); }
  template <class Key>
  void read_together(const Key& key) {
    const int all = static_cast<int>(edges().size()) + 1;
    int senders[most_packets];
    for (int first = 0; first < all; first += most_packets) {
      KeyedPackets packets;
      packets.first = first;
      packets.count = std::min(all - first, most_packets);
      for (int p = 0; p < packets.count; ++p) {
        const auto edge = static_cast<std::size_t>(first + p) - 1;  // edges follow this rank's own packet
        const bool own = first + p == 0;
        packets.sections[p] = (own ? neighbors_.own() : neighbors_.from(edge)) + whole().section_at;
        packets.weights[p] = own ? 0.0F : static_cast<float>(edges()[edge].weight);
        senders[p] = own ? context_.rank : edges()[edge].peer;
      }
      compressor_.decode_together(context_.executor, whole().compressed, packets, key,
                                  AddDifferences{own_.data(), difference_.data(), begin_}, wrong_.data());
      envelope_.check_read(context_.executor, wrong_.data(),
                           {senders, static_cast<std::size_t>(packets.count)});
    }
  }
  template <class Key, class Use>
  void decode(const std::byte* packet, int peer, const Key& key, const Use& use) {
    std::uint32_t& wrong = *wrong_.data();
    compressor_.decode(context_.executor, whole().compressed, packet + whole().section_at, key, use, wrong);
    envelope_.check_read(context_.executor, wrong, peer);
  }

  Channel channel_;
  Layout layout_;
  Envelope<E> envelope_;
  Context context_;
  C compressor_;
  Plan plan_;
  Neighborhood<G, E> neighbors_;
  Inbox<Dense> inbox_;
  index_t begin_;
  buffer<float, typename E::memory> own_, difference_;
  buffer<std::uint32_t, typename E::memory> wrong_;
};

}  // namespace detail

}  // namespace terse
