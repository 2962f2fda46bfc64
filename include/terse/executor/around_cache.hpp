// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/sinks.hpp"
#include "terse/executor/streams.hpp"

// Stores around the cache. Memory that a verb only writes is fetched before it is overwritten, unless whole cache lines
// are stored by non-temporal instructions. The fetch is a third of such a pass's bytes.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

inline namespace TERSE_INSTRUCTIONS {

/// The minimum length of a range that is stored around the cache. Shorter ranges are often still cached when they
/// are read again.
inline constexpr index_t around_cache_from = index_t{1} << 21;

/// True if the instruction set has non-temporal stores of at least 32 bytes. SSE2 has stores of 16 bytes, which are
/// slower than plain ones.
#ifdef __AVX2__
inline constexpr bool stores_around_cache = true;
#else
inline constexpr bool stores_around_cache = false;
#endif

/// Copies 64 elements to the beginning of a cache line, around the cache.
template <class T>
TERSE_INLINE void store_lanes(const T* from, T* to) {
  constexpr std::size_t bytes = lanes * sizeof(T);
#if defined(__AVX512F__)
  const auto* source = reinterpret_cast<const char*>(from);
  for (std::size_t k = 0; k < bytes; k += sizeof(__m512i))
    _mm512_stream_si512(reinterpret_cast<__m512i*>(reinterpret_cast<char*>(to) + k),
                        _mm512_load_si512(source + k));
#elif defined(__AVX2__)
  const auto* source = reinterpret_cast<const char*>(from);
  for (std::size_t k = 0; k < bytes; k += sizeof(__m256i))
    _mm256_stream_si256(reinterpret_cast<__m256i*>(reinterpret_cast<char*>(to) + k),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(source + k)));
#else
  std::memcpy(to, from, bytes);
#endif
}

/// Issues a fence: other threads see the stores around the cache before this thread's next stores.
inline void end_stores() {
#ifdef __AVX2__
  _mm_sfence();
#endif
}

/// A block of 64 elements of each of a functor's streams. It holds the elements of write-only streams until they are
/// stored.
template <class Streams>
struct BlockOf;
template <>
struct BlockOf<Streams<>> {
  static constexpr bool written = false;
  static bool whole_lines(const Streams<>&, index_t) { return true; }
  TERSE_INLINE void lend(const Streams<>&, const Streams<>&, index_t) {}
  TERSE_INLINE void store(const Streams<>&, index_t) const {}
};
template <class First, class... Rest>
struct BlockOf<Streams<First, Rest...>> {
  using List = Streams<First, Rest...>;
  using Element = typename First::Element;
  static constexpr bool own = First::access == Access::writes;
  static constexpr bool written = own || BlockOf<Streams<Rest...>>::written;

  alignas(64) Element block[own ? lanes : 1];
  BlockOf<Streams<Rest...>> rest;

  /// Checks whether element i begins a cache line in each write-only stream.
  static bool whole_lines(const List& streams, index_t i) {
    const bool here = !own || reinterpret_cast<std::uintptr_t>(streams.first.at(i)) % 64 == 0;
    return here && BlockOf<Streams<Rest...>>::whole_lines(streams.rest, i);
  }
  /// Points `bound`'s streams to the block that begins with element i.
  TERSE_INLINE void lend(const List& streams, const List& bound, index_t i) {
    if constexpr (own)
      *bound.first.data = block;
    else if (*streams.first.data != nullptr)
      *bound.first.data = streams.first.at(i);
    if (bound.first.begin != nullptr) *bound.first.begin = 0;
    rest.lend(streams.rest, bound.rest, i);
  }
  TERSE_INLINE void store(const List& streams, index_t i) const {
    if constexpr (own) store_lanes(block, streams.first.at(i));
    rest.store(streams.rest, i);
  }
};

/// A functor with a write-only stream and without work before or after a block.
template <class F>
concept OnlyWrites = NamesStreams<F> && !EntersBlocks<F> && !LeavesBlocks<F> && requires(F & f) {
  requires BlockOf<decltype(f.streams())>::written;
};

/// Runs a whole block on the host: sink(own, l, f, piece, i, true[, sum]) for each lane. The loop has constant bounds,
/// so that compilers vectorize it even at -O2.
template <class Own, class F, class Sink, class... Sum>
TERSE_INLINE void run_whole(Own own, const Piece& piece, index_t first, F& f, Sink& sink, const Sum*... sum) {
  TERSE_LANES
  for (int l = 0; l < lanes; ++l) sink(own, l, f, piece, first + l, true, sum[l]...);
}

/// The whole blocks of a piece from element `begin` on, for `sweep`.
template <class F, class Sink>
struct WholeBlocks {
  WholeBlocks(const F&, const Piece&, index_t) {}
  template <class Own, class... Sum>
  TERSE_INLINE void run(Own own, const Piece& piece, index_t first, F& f, Sink& sink, const Sum*... sum) {
    run_whole(own, piece, first, f, sink, sum...);
  }
};

/// The sink of a verb without a result that stores around the cache.
struct CallAround : CallOnly {};
template <OnlyWrites F>
struct WholeBlocks<F, CallAround> {
  F bound;
  bool around;

  TERSE_INLINE WholeBlocks(F f, const Piece& piece, index_t begin)
      : bound(f), around(BlockOf<decltype(f.streams())>::whole_lines(f.streams(), piece.offset + begin)) {}
  WholeBlocks(const WholeBlocks&) = delete;
  WholeBlocks& operator=(const WholeBlocks&) = delete;
  ~WholeBlocks() {
    if (around) end_stores();
  }

  template <class Own, class... Sum>
  TERSE_INLINE void run(Own own, const Piece& piece, index_t first, F& f, CallAround& sink,
                        const Sum*... sum) {
    if (!around) return run_whole(own, piece, first, f, sink, sum...);
    BlockOf<decltype(f.streams())> block;
    const auto streams = f.streams();
    block.lend(streams, bound.streams(), first);
    TERSE_LANES
    for (int l = 0; l < lanes; ++l) bound(piece, l, true, sum[l]...);
    block.store(streams, first);
  }
};

}  // namespace TERSE_INSTRUCTIONS

TERSE_NUMERICS_END

}  // namespace terse::detail
