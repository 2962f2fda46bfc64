// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "terse/error_feedback/none.hpp"
#include "terse/exchange/exchange.hpp"
#include "terse/topology/mixing.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// What a rank's own packet means to everybody.
struct KeepOwn {
  float *own, *difference;
  index_t begin;
  TERSE_HD void operator()(const Piece&, index_t i, float y) const {
    own[i - begin] = y;
    difference[i - begin] = 0;
  }
};

/// What a neighbour's packet adds.
struct AddDifference {
  const float* own;
  float* difference;
  float weight;
  index_t begin;
  TERSE_HD void operator()(const Piece&, index_t i, float y) const {
    difference[i - begin] += weight * (y - own[i - begin]);
  }
};

template <class F>
struct MixKept {
  F consume;
  const float* difference;
  index_t begin;
  TERSE_HD void enter(const Piece& piece) { terse::enter(consume, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool) const {
    consume(piece, i, difference[i - begin]);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

/// Mixing with keyed compressors (Moniqua, Lattice): a packet says z_j only to those whose own z is near, so that
/// each is read beside it,
///
///     y_j = what z_j's packet means beside z_i        difference_i = sum_j W_ij (y_j - y_i)
///
/// y_i too by the packet, as all others read it: a doubly stochastic W keeps the mean of the ranks. It is exactly 0
/// where all agree. Excluded segments travel as they are.
///
/// Throws wire_error, with nothing consumed, where a packet does not decode beside this rank's z: the two are further
/// apart than the compressor's bound. On a device that is `settle`'s, as for other errors. The message is evaluated
/// once to be sent and once for each packet that is read, and must not have changed between. Memory, beside the
/// messages: two floats for each element. Grid executors need terse/compressor/grid_keyed.hpp.
template <Compressor C, ErrorFeedback F, graph::Graph G, int Vectors, Transport T, Executor E>
requires(Traits<C>::keyed) class Exchange<C, F, Mixing<G, Vectors>, T, E> {
  static_assert(Vectors == 1,
                "terse: keyed compressors (Moniqua, Lattice) are for methods that mix one vector; Difference "
                "or Residual serve those with two");
  static_assert(std::is_same_v<F, None>,
                "terse: a keyed compressor (Moniqua, Lattice) needs no error feedback: its error is below a "
                "bound, whatever the size of the message. Use None");
  // What is not compressed, and all that packets have in common.
  using Context = RoundContext<Dense, None, T, E>;

 public:
  // Tickets point into it.
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  Exchange(E executor, T& transport, const Layout& layout, const Range& range, const C& compressor,
           const F& feedback = {}, bool = false, const Mixing<G, Vectors>& topology = {})
      : round_context_(executor, transport.split(0, transport.rank()), Dense{}, feedback, layout, range,
                       false),
        compressor_(compressor),
        whole_(Plan(compressor, layout, range, 1, false).whole),
        neighbors_(topology.graph, round_context_.rank, round_context_.size, whole_.bytes),
        inbox_(neighbors_.most() + 1),
        begin_(whole_.compressed.begin_offset()),
        own_(whole_.compressed.end_offset() - begin_),
        difference_(own_.size()),
        wrong_(1) {}

  template <class M>
  void start(const StepContext& context, Mask<typename E::memory> mask, const M& message) {
    round_context_.open(context.step, context.seed, context.agreement, context.learning_rate, mask,
                        context.now);
    const auto sent = message.vector(Vector<0>{});
    std::byte* packet = neighbors_.own();
    compressor_.encode(round_context_.executor, whole_.compressed, sent.compressed, round_context_.first,
                       packet + whole_.section_at, *round_context_.codec.bad());
    round_context_.codec.encode(whole_, mask, EmptyInbox{}, sent, round_context_.first, true, packet);
    round_context_.note(round_context_.codec);
    round_context_.stamp(packet, whole_.bytes, Phase::spread, 0);
    neighbors_.post(round_context_.channel, context.step - 1, whole_.bytes, false);
    context_ = context;
    message_.keep(message);
  }
  /// Never waits; moves the round on.
  bool ready() { return neighbors_.settle(false); }

  template <class Consumer>
  void finish(const Consumer& consumer) {
    neighbors_.settle(true);
    for (std::size_t e = 0; e < edges().size(); ++e)
      round_context_.accept(neighbors_.from(e), whole_, Phase::spread, 0, edges()[e].peer);
    round_context_.arrived(context_.on_non_finite == NonFinite::throw_);
    message_.advance(*this, true);
    consume(consumer.vector(Vector<0>{}));
  }
  /// As the other exchanges'.
  void settle(const StepContext& context) {
    if constexpr (requires { round_context_.channel.synchronize(); }) round_context_.channel.synchronize();
    round_context_.settle(context.step);
  }

  /// Takes over hyper-parameters that changed between steps, alike on all ranks.
  void set_compressor(const C& compressor) { compressor_ = compressor; }
  /// Nothing lasts.
  template <class Visit>
  void walk(Visit&&) {}

 private:
  const std::vector<graph::Edge>& edges() const { return neighbors_.edges(); }

  friend class detail::MessageUnderWay<Exchange>;
  /// Reads all packets beside this rank's own message.
  template <class M>
  bool advance(const M& message, bool) {
    const auto key = message.vector(Vector<0>{}).compressed;
    decode(neighbors_.own(), round_context_.rank, key,
           detail::KeepOwn{own_.data(), difference_.data(), begin_});
    for (std::size_t e = 0; e < edges().size(); ++e)
      decode(neighbors_.from(e), edges()[e].peer, key,
             detail::AddDifference{own_.data(), difference_.data(), static_cast<float>(edges()[e].weight),
                                   begin_});
    return true;
  }
  template <class Key, class Use>
  void decode(const std::byte* packet, int peer, const Key& key, const Use& use) {
    std::uint32_t& wrong = *wrong_.data();
    compressor_.decode(round_context_.executor, whole_.compressed, packet + whole_.section_at, key, use,
                       wrong);
    round_context_.envelope.check_read(round_context_.executor, wrong, peer);
  }
  template <class Outcome>
  void consume(const Outcome& outcome) {
    for_each(round_context_.executor, whole_.compressed, Mask<typename E::memory>{}, NoPackets{},
             round_context_.envelope.gated(detail::MixKept<decltype(outcome.compressed)>{
                 outcome.compressed, difference_.data(), begin_}));
    inbox_.clear();
    inbox_.add(Dense{}, whole_, neighbors_.own(), round_context_.first.shared);
    for (std::size_t e = 0; e < edges().size(); ++e)
      inbox_.add(Dense{}, whole_, neighbors_.from(e), round_context_.first.shared,
                 static_cast<float>(edges()[e].weight));
    for_each(round_context_.executor, whole_.dense, Mask<typename E::memory>{},
             Differences<Dense::Code>{inbox_.dense()},
             round_context_.envelope.gated(detail::MixExact<decltype(outcome.dense)>{outcome.dense}));
  }

  Context round_context_;
  C compressor_;
  Portion whole_;
  detail::Neighborhood<G, T, E> neighbors_;
  Inbox<Dense> inbox_;
  index_t begin_;
  buffer<float, typename E::memory> own_, difference_;
  buffer<std::uint32_t, typename E::memory> wrong_;
  detail::MessageUnderWay<Exchange> message_;
  StepContext context_;
};

}  // namespace terse
