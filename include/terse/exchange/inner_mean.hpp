// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "terse/error_feedback/none.hpp"
#include "terse/exchange/rounds.hpp"
#include "terse/executor/factors.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Writes a message to another place.
template <class F>
struct PutThere {
  const Moved* places;
  index_t count;
  float* arena;
  F message;
  index_t begin = 0;  // index of the message's element for arena[0]

  using StreamsOf = PutThere;
  TERSE_HD auto streams() requires NamesStreams<F> { return message.streams() + writes(arena, begin); }
  TERSE_HD void enter(const Piece& piece) {
    const Moved& place = find(places, count, piece.offset);
    begin = place.offset - place.there;
    terse::enter(message, piece);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i) const { arena[i - begin] = message(piece, i); }
};

/// Passes values from another place to a consumer.
template <class F>
struct TakeThere {
  const Moved* places;
  index_t count;
  const float* arena;
  F consume;
  index_t begin = 0;  // see PutThere

  using StreamsOf = TakeThere;
  TERSE_HD auto streams() requires NamesStreams<F> { return consume.streams() + reads(arena, begin); }
  TERSE_HD void enter(const Piece& piece) {
    const Moved& place = find(places, count, piece.offset);
    begin = place.offset - place.there;
    terse::enter(consume, piece);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool) const { consume(piece, i, arena[i - begin]); }
};

/// An arena as a message.
struct ReadArena {
  const float* arena;
  using StreamsOf = ReadArena;
  TERSE_HD auto streams() { return reads(arena); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return arena[i]; }
  TERSE_HD Sample operator()(const Piece& piece, index_t i, bool) const { return {(*this)(piece, i), 0}; }
};

/// Writes a mean into an arena; segments that are `lost` keep their values.
struct WriteArena {
  float* arena;
  const std::uint8_t* lost = nullptr;
  bool keep = true;

  using StreamsOf = WriteArena;
  TERSE_HD auto streams() { return updates(arena); }
  TERSE_HD void enter(const Piece& piece) { keep = lost == nullptr || lost[piece.segment] == 0; }
  TERSE_HD void operator()(const Piece&, index_t i, float mean) const {
    arena[i] = keep_if(keep, mean, arena[i]);
  }
};

TERSE_NUMERICS_END

/// The exact mean of a separate arena within a round. It uses the round's envelope: its packets carry the round's flags
/// and check its hyper-parameters, and its errors are errors of the round.
template <class P, Executor E>
class InnerMean {
 public:
  template <class Context>
  InnerMean(Context& context, const Layout& layout, const P& topology)
      : rounds_(context.executor, context.channel, Dense{}, NoErrorFeedback{}, layout, layout.range(), false,
                dense_topology(topology)) {}

  template <class Context>
  void start(Context& context, const float* arena) {
    rounds_.open({.step = context.step,
                  .agreement = context.check,
                  .learning_rate = context.rate,
                  .checks_payload = context.checks_payload},
                 {});
    swap_envelopes(context);
    const ReadArena read{arena};
    rounds_.start(Message{read, read});
  }
  template <class Context>
  bool advance(Context& context, const float* arena, bool block) {
    const ReadArena read{arena};
    if (!rounds_.advance(Message{read, read}, block)) return false;
    swap_envelopes(context);
    return true;
  }
  template <class Context>
  void take(Context& context, const WriteArena& write) {
    swap_envelopes(context);
    rounds_.consume(Message{write, write});
    swap_envelopes(context);
  }
  index_t most_bytes() const { return rounds_.most_bytes(); }

 private:
  template <class Context>
  void swap_envelopes(Context& context) {
    std::swap(rounds_.envelope(), context.envelope);
  }

  Rounds<Dense, NoErrorFeedback, DenseTopologyOf<P>, E> rounds_;
};

}  // namespace terse::detail
