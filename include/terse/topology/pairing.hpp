// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/graph/pairs.hpp"
#include "terse/topology/mixing.hpp"

namespace terse {

/// Exchange between partners, both of which get the same mean, bit for bit: half the sum, which doesn't depend on the order.
/// Mixing's x_i + (x_j - x_i) / 2, in contrast, is rounded separately on each rank. A rank without a partner in a round gets its
/// own message. It is for messages that are not compressed; keyed packets go through Mixing, which keeps the mean of all ranks.
/// Sends one packet to the partner.
template <graph::PairGraph G>
struct Pairing {
  static constexpr bool exact = false;
  static constexpr bool recompresses = false;
  using Graph = G;

  G graph{};  ///< the partner of each rank in each round

  template <class Visit>
  void settings(Visit&& visit) const {
    graph::visit_settings(graph, visit);
  }

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    static_assert(C::lossless,
                  "terse: partners take each other's parameters as they are, or as a lattice (Lattice, "
                  "Moniqua) reads them");
    using Context = RoundContext<C, F, E>;

   public:
    Round(Context& context, const Pairing& topology)
        : neighbors_(topology.graph, context.channel, context.plan.whole.bytes), inbox_(2) {}

    template <class M>
    void start(Context& context, const M& message) {
      const Portion& whole = context.plan.whole;
      context.codec.encode(whole, context.mask, EmptyInbox{}, message, context.first, true, neighbors_.own());
      context.note(context.codec);
      context.stamp(neighbors_.own(), whole.bytes, Phase::spread, 0);
      neighbors_.post(context.channel, context.step - 1, whole.bytes, false);
    }

    template <class M>
    bool advance(Context& context, const M&, bool block) {
      if (!neighbors_.settle(block)) return false;
      for (std::size_t e = 0; e < neighbors_.edges().size(); ++e)
        context.accept(neighbors_.from(e), context.plan.whole, Phase::spread, 0, neighbors_.edges()[e].peer);
      return true;
    }

    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      const Portion& whole = context.plan.whole;
      inbox_.clear();
      context.add(inbox_, whole, neighbors_.own(), Phase::spread, context.rank);
      const bool meets = !neighbors_.edges().empty();
      if (meets) context.add(inbox_, whole, neighbors_.from(0), Phase::spread, neighbors_.edges()[0].peer);
      deliver(context, whole, inbox_, meets ? 0.5F : 1.0F, consumer);
    }

    index_t most_bytes(const Context&) const { return neighbors_.most_bytes(); }

   private:
    detail::Neighborhood<G, E> neighbors_;
    Inbox<C> inbox_;
  };
};

}  // namespace terse
