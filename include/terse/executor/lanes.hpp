// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "terse/executor/around_cache.hpp"
#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/cursor.hpp"
#include "terse/executor/damage.hpp"
#include "terse/executor/units.hpp"

// The loop of the host executor, from incoming data (cursor.hpp) to results (sinks.hpp): in blocks of 64 lanes.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Calls f(piece, i, keep[, sum]) by `sink` for each lane of an incomplete block.
template <class Own, class F, class Sink, class... Sum>
TERSE_INLINE void run_part(Own own, const Piece& piece, index_t first, int count, NoMask, F& f, Sink& sink,
                           const Sum*... sum) {
  TERSE_LAST_LANES
  for (int l = 0; l < count; ++l) sink(own, l, f, piece, first + l, true, sum[l]...);
}
/// Calls f(piece, i, keep[, sum]) by `sink` for each lane of a block with masked or missing elements.
template <class Own, class F, class Sink, class... Sum>
TERSE_INLINE void run_part(Own own, const Piece& piece, index_t first, int count, HostMask mask, F& f,
                           Sink& sink, const Sum*... sum) {
  alignas(64) std::uint8_t keep[lanes];
  spread_bits(mask.word(first), keep);
  opaque(keep);
  if (count == lanes) {
    TERSE_LANES
    for (int l = 0; l < lanes; ++l) sink(own, l, f, piece, first + l, keep[l] != 0, sum[l]...);
  } else {
    TERSE_LAST_LANES
    for (int l = 0; l < count; ++l) sink(own, l, f, piece, first + l, keep[l] != 0, sum[l]...);
  }
}

/// A cursor whose packets may have values that are not finite, see Packets::damage.
template <class C>
concept LooksForDamage = requires(const C& cursor) {
  cursor.is_sound(index_t{}, index_t{});
};
template <class C>
concept ReadsInPlace = requires(const C& cursor, float (&sum)[lanes]) {
  cursor.load_whole(index_t{}, sum);
};

/// Calls run(first, sums) for a block of elements. `Whole` states whether the block is complete.
template <class Incoming, class Run, class Whole>
TERSE_INLINE void load_and_run(const Cursor<Incoming>& incoming, index_t first, index_t b, int count,
                               float (&sum)[lanes], const Run& run, Whole) {
  if constexpr (Whole::value && ReadsInPlace<Cursor<Incoming>>) {
    run(first, incoming.load_whole(b, sum));
  } else {
    incoming.load(first, b, count, sum);
    run(first, &sum[0]);
  }
}

/// Returns the end of the elements from `begin` on that need not be checked: `end`, unless the verb looks for
/// damage.
template <class Incoming>
inline index_t sound_until(const Cursor<Incoming>& incoming, index_t begin, index_t end) {
  if constexpr (LooksForDamage<Cursor<Incoming>>)
    if (incoming.packets.damage != nullptr) {
      const index_t count = std::min(looked_at_together, (end - begin) / lanes * lanes);
      return count > 0 && incoming.is_sound(begin, count) ? begin + count : begin;
    }
  return end;
}

/// Runs the elements [begin, end) of a piece, block by block; `begin` is a multiple of 64.
template <class Masked, class Incoming, class F, class Sink>
TERSE_FLATTEN inline void sweep(const Piece& piece, index_t begin, index_t end, Masked mask,
                                const Cursor<Incoming>& incoming, const F& given, Sink& sink) {
  // A local copy, which compilers can keep in registers. The argument is in memory: after a hundred uses clang can't
  // prove that no store changes it, and reloads its members in each block.
  F f = given;
  enter(f, piece);
  // A copy that no store in the loops can change.
  const auto own = prepared(f, sink.own());
  WholeBlocks<F, Sink> blocks(f, piece, begin);
  const auto whole = [&](index_t first, auto... sum)
                         TERSE_INLINE_LAMBDA { blocks.run(own, piece, first, f, sink, sum...); };
  const auto block = [&](index_t b, int count, auto run) TERSE_INLINE_LAMBDA {
    const index_t first = piece.offset + b;
    enter_block(f, first);
    sink.prepare(first);
    if constexpr (Cursor<Incoming>::streams == 0) {
      run(first);
    } else if constexpr (Cursor<Incoming>::streams == 1) {
      alignas(64) float sum[lanes];
      load_and_run(incoming, first, b, count, sum, run,
                   std::is_same<decltype(run), std::remove_const_t<decltype(whole)>>{});
    } else {
      alignas(64) float value[lanes], difference[lanes];
      incoming.load(first, b, count, value, difference);
      run(first, value, difference);
    }
    sink.flush(b, count);
    leave_block(f, first, count);
  };
  for (index_t b = begin; b < end; b += lanes) {
    // A separate loop without calls, so that constants stay in registers from block to block.
    for (index_t sound = sound_until(incoming, b, end); sound > b; sound = sound_until(incoming, b, end)) {
      for (; sound - b >= lanes && mask.word(piece.offset + b) == ~std::uint64_t{0}; b += lanes)
        block(b, lanes, whole);
      if (b < sound) break;
    }
    if (b == end) break;
    const int count = static_cast<int>(std::min<index_t>(lanes, end - b));
    block(b, count, [&](index_t first, auto... sum) TERSE_INLINE_LAMBDA {
      if constexpr (LooksForDamage<Cursor<Incoming>>)
        if (incoming.packets.damage != nullptr) incoming.judge(b, count, sum...);
      run_part(own, piece, first, count, mask, f, sink, sum...);
    });
  }
}

}  // namespace detail

TERSE_NUMERICS_END
}  // namespace terse
