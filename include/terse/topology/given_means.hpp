// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/topology/round.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Passes means from a buffer to their consumer. Values that are not finite count as 0.
template <class Consumer>
struct PassOn {
  const float* means;
  Consumer consumer;
  using StreamsOf = PassOn;
  TERSE_HD auto streams() requires NamesStreams<Consumer> { return consumer.streams() + reads(means); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(consumer, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool) const {
    consumer(piece, i, sanitized(means[i]).value);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

namespace detail {

/// A topology for means that this rank already has, in full precision: `consume` passes them from `means`, and nothing is encoded or
/// sent. The message must be equal to the means; it is evaluated only to find values that are not finite, if there may be any.
struct GivenMeans {
  static constexpr bool exact = true;
  static constexpr bool recompresses = false;
  using ForDense = GivenMeans;

  const float* means = nullptr;  ///< means, one for each element of the layout
  bool finite = false;           ///< all means are known to be finite

  template <class Visit>
  void settings(Visit&&) const {}

  template <Compressor C, ErrorFeedback F, Executor E>
  class Round {
    static_assert(C::lossless);
    using Context = RoundContext<C, F, E>;

   public:
    Round(const Context&, const GivenMeans& given) : means_(given.means), finite_(given.finite) {}

    template <class M>
    void start(Context& context, const M& message) {
      if (finite_) return;
      for_each(context.executor, context.plan.whole.dense, NoMask{}, NoPackets{},
               Examine<decltype(message.dense)>{{{message.dense}, context.codec.bad()}});
      context.note(context.codec);
    }
    template <class M>
    bool advance(Context&, const M&, bool) {
      return true;
    }
    template <class Consumer>
    void consume(Context& context, const Consumer& consumer) {
      for_each(context.executor, context.plan.whole.dense, NoMask{}, NoPackets{},
               context.envelope.gated(PassOn<decltype(consumer.dense)>{means_, consumer.dense}));
    }
    index_t most_bytes(const Context&) const { return 0; }
    double notes(E) { return 0; }

   private:
    const float* means_;
    bool finite_;
  };
};

}  // namespace detail

}  // namespace terse
