// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "terse/executor/aligned.hpp"
#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/streams.hpp"
#include "terse/executor/tiles.hpp"

// Execution of functors that name their streams, on grid executors, with 16 threads for each tile. Thread q has lanes
// 4 q to 4 q + 3 of every row of 64. It loads and stores 16 bytes (8 for elements of 2 bytes), with several rows in
// flight at a time.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

inline constexpr int quad = 4;
inline constexpr int row_threads = lanes / quad;

template <class T>
struct alignas(quad * sizeof(T)) Quad {
  T x[quad];
};
/// A word as wide as a quad, so that a device uses one instruction for it.
template <std::size_t Bytes>
struct WideWord {
  using type = std::uint32_t;
};
#ifdef __CUDACC__
template <>
struct WideWord<16> {
  using type = uint4;
};
template <>
struct WideWord<8> {
  using type = uint2;
};
#endif

template <class T>
TERSE_HD Quad<T> load_quad(const T* from) {
  Quad<T> four;
#ifdef __CUDA_ARCH__
  const auto word = *reinterpret_cast<const typename WideWord<sizeof four>::type*>(from);
  std::memcpy(&four, &word, sizeof four);
#else
  require_aligned(from, sizeof four);
  std::memcpy(&four, from, sizeof four);
#endif
  return four;
}
template <class T>
TERSE_HD void store_quad(T* to, const Quad<T>& four) {
#ifdef __CUDA_ARCH__
  typename WideWord<sizeof four>::type word;
  std::memcpy(&word, &four, sizeof four);
  *reinterpret_cast<typename WideWord<sizeof four>::type*>(to) = word;
#else
  require_aligned(to, sizeof four);
  std::memcpy(to, &four, sizeof four);
#endif
}
template <class T>
TERSE_HD bool same_bits(const Quad<T>& a, const Quad<T>& b) {
  constexpr std::size_t words = sizeof(Quad<T>) / 4;
  std::uint32_t left[words], right[words], differ = 0;
  std::memcpy(left, &a, sizeof left);
  std::memcpy(right, &b, sizeof right);
  for (std::size_t w = 0; w < words; ++w) differ |= left[w] ^ right[w];
  return differ == 0;
}

/// The position of a functor: alone, or the first or second of two. Two are called for a tile while it holds the
/// elements that the first hands over to the second.
enum class Turn { alone, first, second };

/// Four elements of each stream, in registers while a functor runs.
template <class Streams>
struct Quads;
template <>
struct Quads<Streams<>> {
  template <Turn turn>
  TERSE_HD void load(const Streams<>&, index_t) {}
  TERSE_HD void lend(const Streams<>&) {}
  template <Turn turn>
  TERSE_HD void store(const Streams<>&, index_t) const {}
};
template <class First, class... Rest>
struct Quads<Streams<First, Rest...>> {
  using List = Streams<First, Rest...>;
  using Element = typename First::Element;
  Quad<Element> now, before;
  Quads<Streams<Rest...>> rest;

  /// Loads elements i to i + 3.
  template <Turn turn>
  TERSE_HD TERSE_INLINE void load(const List& streams, index_t i) {
    if constexpr (First::access == Access::writes ||
                  (First::access == Access::hands_over && turn == Turn::first)) {
#ifndef __CUDA_ARCH__
      std::memset(&now, 0xFF, sizeof now);  // so that reads of unset elements become visible
#endif
    } else {
      now = before = load_quad<Element>(streams.first.at(i));
    }
    rest.template load<turn>(streams.rest, i);
  }
  /// Points the streams to the elements here, 0 to 3.
  TERSE_HD TERSE_INLINE void lend(const List& streams) {
    *streams.first.data = now.x;
    if (streams.first.begin != nullptr) *streams.first.begin = 0;
    rest.lend(streams.rest);
  }
  template <Turn turn>
  TERSE_HD TERSE_INLINE void store(const List& streams, index_t i) const {
    if constexpr (First::access == Access::hands_over && turn == Turn::second) {
      // Not needed any more.
    } else if constexpr (First::access == Access::may_update) {
      if (!same_bits(now, before)) store_quad(streams.first.at(i), now);
    } else if constexpr (First::access != Access::reads) {
      store_quad(streams.first.at(i), now);
    } else {
#ifndef __CUDACC__
      if (!same_bits(now, before)) {
        std::fputs("terse: emulated device: a functor writes to a stream that it says it reads\n", stderr);
        std::abort();
      }
#endif
    }
    rest.template store<turn>(streams.rest, i);
  }
};

template <class F>
using StreamsOf = decltype(std::declval<F&>().streams());

/// Calls use(row, bound f) for each of `Rows` rows, with f bound to four elements of each of its streams: i to i + 3 in
/// the first row, and the same lanes in the others. They are loaded through the pointers of `from` and stored through
/// those of `to`.
template <int Rows, Turn turn, class F, class Use>
TERSE_HD TERSE_INLINE void with_rows(F& from, F& to, index_t i, Use use) {
  Quads<StreamsOf<F>> quads[std::size_t{Rows}];
  const auto sources = from.streams();
  TERSE_UNROLL
  for (int r = 0; r < Rows; ++r) quads[r].template load<turn>(sources, i + r * lanes);
  TERSE_UNROLL
  for (int r = 0; r < Rows; ++r) {
    F bound = from;
    quads[r].lend(bound.streams());
    use(r, bound);
  }
  const auto targets = to.streams();
  TERSE_UNROLL
  for (int r = 0; r < Rows; ++r) quads[r].template store<turn>(targets, i + r * lanes);
}
template <int Rows, class F, class Use>
TERSE_HD TERSE_INLINE void with_rows(F& f, index_t i, Use use) {
  with_rows<Rows, Turn::alone>(f, f, i, use);
}

/// The rows in flight at a time: enough loads to keep memory busy, but so few that their elements, and the incoming
/// sums, stay in registers.
template <class F, bool Arrives>
inline constexpr int rows_of = StreamsOf<F>::count <= 1 && !Arrives ? 8
                               : StreamsOf<F>::count <= 4           ? 4
                                                                    : 2;

template <Tuning tuning, class F, bool Arrives>
inline constexpr int tuned_rows = tuning.rows > 0 ? tuning.rows : rows_of<F, Arrives>;

/// The mask of four elements in each of `Rows` rows: bits 0 to 3 are set if elements i to i + 3 take part. i lies in
/// the first row and is a multiple of 4. The bits above mean nothing.
template <int Rows, class Space>
struct FourOf {
  std::uint32_t bits[std::size_t{Rows}];

  TERSE_HD FourOf(const Mask<Space>& mask, index_t i) {
    TERSE_UNROLL
    for (std::uint32_t& row : bits) row = 15;
    if (mask.words == nullptr) return;
    const auto place = static_cast<std::uint64_t>(i);
    const std::byte* const from = reinterpret_cast<const std::byte*>(mask.words) + place / 32 * 4;
    TERSE_UNROLL
    for (int r = 0; r < Rows; ++r) bits[r] = load_aligned<std::uint32_t>(from + r * lanes / 8) >> place % 32;
  }
  TERSE_HD bool operator()(int r, int j) const { return (bits[r] >> j & 1) != 0; }
};

/// Returns a word whose byte k is byte (select >> 4 k) % 8 of the pair y x.
TERSE_HD inline std::uint32_t permuted_bytes(std::uint32_t x, std::uint32_t y, std::uint32_t select) {
#ifdef __CUDA_ARCH__
  return __byte_perm(x, y, select);
#else
  const std::uint64_t both = x | std::uint64_t{y} << 32;
  std::uint32_t word = 0;
  for (int k = 0; k < 4; ++k)
    word |= static_cast<std::uint32_t>(both >> 8 * (select >> 4 * k & 7) & 0xFF) << 8 * k;
  return word;
#endif
}

/// Transposes groups of four bits. Each of eight neighbouring threads has four bits of each of eight rows, row r's at
/// 4 r. Afterwards thread k has the 32 bits of row k. The whole warp takes part.
template <class Block>
TERSE_HD std::uint32_t transposed_nibbles(Block& block, std::uint32_t word, int lane) {
  std::uint32_t other = block.shuffle(word, lane ^ 4);
  word = permuted_bytes(word, other, (lane & 4) != 0 ? 0x3276 : 0x5410);
  other = block.shuffle(word, lane ^ 2);
  word = permuted_bytes(word, other, (lane & 2) != 0 ? 0x3715 : 0x6240);
  other = block.shuffle(word, lane ^ 1);
  constexpr std::uint32_t low = 0x0F0F0F0F;
  return (lane & 1) != 0 ? (other >> 4 & low) | (word & ~low) : (word & low) | (other & low) << 4;
}

/// The codes of eight rows of 64 elements; each thread has four lanes of each row. There is a word for each bit of a
/// code, with that bit of these lanes. Row r's bits begin at 4 r.
template <int Bits>
struct Planes {
  static constexpr int rows = 8;
  std::uint32_t bits[static_cast<std::size_t>(Bits)] = {};

  TERSE_HD void note(int r, int j, std::uint32_t code) {
    TERSE_UNROLL
    for (int bit = 0; bit < Bits; ++bit) bits[bit] |= (code >> bit & 1U) << (quad * r + j);
  }
  /// The codes of the thread's four lanes, in a row that is unknown at compile time.
  TERSE_HD TERSE_INLINE void note(int r, const std::uint32_t (&codes)[quad]) {
    Planes row;
    TERSE_UNROLL
    for (int j = 0; j < quad; ++j) row.note(0, j, codes[j]);
    TERSE_UNROLL
    for (int bit = 0; bit < Bits; ++bit) bits[bit] |= row.bits[bit] << quad * r;
  }
  /// Stores the codes of rows b, b + 64 ... before `end` of a piece whose codes begin at `to`. The whole warp takes
  /// part.
  template <class Block>
  TERSE_HD TERSE_INLINE void store(Block& block, int thread, std::byte* to, index_t b, index_t end) const {
    const index_t row = b + thread % rows * lanes;
    std::byte* const at = to + row / 8 * Bits + thread % row_threads / rows * 4;
    TERSE_UNROLL
    for (int bit = 0; bit < Bits; ++bit) {
      const std::uint32_t word = transposed_nibbles(block, bits[bit], thread);
      if (row < end) store_aligned(at + 8 * bit, word);
    }
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
