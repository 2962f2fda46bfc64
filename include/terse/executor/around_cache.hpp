// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/sinks.hpp"
#include "terse/executor/streams.hpp"

// Stores around the cache: what a verb only writes is fetched from memory before it is overwritten, a third of such a pass's
// bytes, unless whole cache lines are stored by non-temporal instructions.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Elements of a range from which on it pays: what was written would have left the cache before it is read again.
inline constexpr index_t around_cache_from = index_t{1} << 21;

inline namespace TERSE_INSTRUCTIONS {

/// Copies 64 elements; `around` where `to` is at a cache line and is not read soon.
template <class T>
TERSE_INLINE void store_lanes(const T* from, T* to, bool around) {
#ifdef __SSE2__
  if (around) {
    for (std::size_t k = 0; k < lanes * sizeof(T) / sizeof(__m128i); ++k)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + k,
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from) + k));
    return;
  }
#endif
  std::memcpy(to, from, lanes * sizeof(T));
}

/// Whoever reads what was stored around the cache on another thread reads it after this.
inline void end_stores() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace TERSE_INSTRUCTIONS

/// A block of each of a functor's streams: those that are only written have a place of their own here until they are stored.
template <class Streams>
struct BlockOf;
template <>
struct BlockOf<Streams<>> {
  static constexpr bool written = false;
  static bool whole_lines(const Streams<>&, index_t) { return true; }
  TERSE_INLINE void lend(const Streams<>&, const Streams<>&, index_t) {}
  TERSE_INLINE void store(const Streams<>&, index_t, bool) const {}
};
template <class First, class... Rest>
struct BlockOf<Streams<First, Rest...>> {
  using List = Streams<First, Rest...>;
  using Element = typename First::Element;
  static constexpr bool own = First::access == Access::writes;
  static constexpr bool written = own || BlockOf<Streams<Rest...>>::written;

  alignas(64) Element block[own ? lanes : 1];
  BlockOf<Streams<Rest...>> rest;

  /// Whether element i, which begins a block, begins a cache line of each stream that is only written.
  static bool whole_lines(const List& streams, index_t i) {
    const bool here = !own || reinterpret_cast<std::uintptr_t>(streams.first.at(i)) % 64 == 0;
    return here && BlockOf<Streams<Rest...>>::whole_lines(streams.rest, i);
  }
  /// Has `bound`'s pointers lead to the block that begins with element i.
  TERSE_INLINE void lend(const List& streams, const List& bound, index_t i) {
    if constexpr (own)
      *bound.first.data = block;
    else if (*streams.first.data != nullptr)
      *bound.first.data = streams.first.at(i);
    if (bound.first.begin != nullptr) *bound.first.begin = 0;
    rest.lend(streams.rest, bound.rest, i);
  }
  TERSE_INLINE void store(const List& streams, index_t i, bool around) const {
    if constexpr (own) store_lanes(block, streams.first.at(i), around);
    rest.store(streams.rest, i, around);
  }
};

/// Functors whose whole blocks are evaluated elsewhere and stored at once.
template <class F>
concept OnlyWrites = NamesStreams<F> && !EntersBlocks<F> && !LeavesBlocks<F> && requires(F & f) {
  requires BlockOf<decltype(f.streams())>::written;
};

/// How the host runs whole blocks: sink(own, l, f, piece, i, true[, sum]) for each lane. Loops with constant bounds, because
/// compilers vectorize those even at -O2.
template <class F, class Sink>
struct WholeBlocks {
  WholeBlocks(const F&, const Piece&, index_t, bool) {}
  template <class Own, class... Sum>
  TERSE_INLINE void run(Own own, const Piece& piece, index_t first, F& f, Sink& sink, const Sum*... sum) {
    TERSE_LANES
    for (int l = 0; l < lanes; ++l) sink(own, l, f, piece, first + l, true, sum[l]...);
  }
};
/// Of a verb that has no result.
template <OnlyWrites F>
struct WholeBlocks<F, CallOnly> {
  F bound;
  bool around;

  TERSE_INLINE WholeBlocks(F f, const Piece& piece, index_t begin, bool far)
      : bound(f),
        around(far && BlockOf<decltype(f.streams())>::whole_lines(f.streams(), piece.offset + begin)) {}
  WholeBlocks(const WholeBlocks&) = delete;
  WholeBlocks& operator=(const WholeBlocks&) = delete;
  ~WholeBlocks() {
    if (around) end_stores();
  }

  template <class Own, class... Sum>
  TERSE_INLINE void run(Own, const Piece& piece, index_t first, F& f, CallOnly&, const Sum*... sum) {
    BlockOf<decltype(f.streams())> block;
    const auto streams = f.streams();
    block.lend(streams, bound.streams(), first);
    TERSE_LANES
    for (int l = 0; l < lanes; ++l) bound(piece, l, true, sum[l]...);
    block.store(streams, first, around);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
