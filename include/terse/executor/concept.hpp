// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"
#include "terse/executor/streams.hpp"

namespace terse {

/// A place where functors run: a small copyable value with a static memory space, on which the verbs `for_each`,
/// `reduce`, `store`, `pack`, `reduce_pack`, `copy` and `fill` are overloaded. All memory that they write, flags
/// included, is in that space. Executors that work asynchronously have `synchronize()`.
template <class E>
concept Executor = std::copyable<E> && requires {
  typename E::memory;
};

/// An executor that runs nothing, on which concepts and check_...() try templates over executors.
struct SomeExecutor {
  using memory = terse::memory::host;
};

/// An executor of the grid kind, which runs kernels, see device/verbs/kernels.hpp.
template <class E>
concept GridExecutor = Executor<E> && requires {
  requires E::grid;
};

namespace detail {

/// An executor whose work overlaps with the program's, see executor::overlapped. Its optimizer orders the two:
///
///     follow()    makes later work of this executor wait for the program's work so far
///     lead()      makes later work of the program wait for this executor's work so far
template <class E>
concept OverlappedExecutor = Executor<E> && requires(const E& executor) {
  executor.follow();
  executor.lead();
};

/// An executor whose verbs call a functor's copies from several host threads at once, see executor/parallel.hpp.
template <class E>
concept TeamExecutor = Executor<E> && requires {
  requires E::team_of_threads;
};

/// Calls `follow` or `lead` of executors that have them; the work of other executors is in the program's order.
template <Executor E>
void follow([[maybe_unused]] const E& executor) {
  if constexpr (OverlappedExecutor<E>) executor.follow();
}
template <Executor E>
void lead([[maybe_unused]] const E& executor) {
  if constexpr (OverlappedExecutor<E>) executor.lead();
}

}  // namespace detail

// Declarations that make verbs with template arguments known as templates; argument-dependent lookup finds the
// executor's own.
template <class Statistic>
void reduce() = delete;
template <class Statistic>
void store() = delete;
template <int Bits, bool Stochastic>
void pack() = delete;
template <class Statistic, int Bits, bool Stochastic>
void reduce_pack() = delete;

/// The division of a range into units, each with a separate scale. A unit has `size` elements from the start of each
/// piece (0: the whole piece), or is the whole range.
struct Units {
  index_t size = 0;    ///< elements; 0: the whole piece
  bool whole = false;  ///< true: the range is one unit

  /// Returns the number of units in a piece of `count` elements, if units don't span pieces.
  TERSE_HD constexpr index_t in_piece(index_t count) const {
    return size == 0 ? 1 : (count + size - 1) / size;
  }
  index_t in_range(const Range& range) const {
    if (whole) return 1;
    index_t units = 0;
    for (const Piece& piece : range.pieces()) units += in_piece(piece.count);
    return units;
  }
};

/// The elements that take part: bit i % 64 of word i / 64 belongs to arena index i. Without words all take part. Verbs
/// pass the bit to functors as `keep`; masked elements don't enter a statistic or its count.
template <class Space>
struct Mask {
  const std::uint64_t* words = nullptr;  ///< nullptr: all take part

  /// Returns the word that begins at arena index `i`, a multiple of 64.
  TERSE_HD std::uint64_t word(index_t i) const {
    return words == nullptr ? ~std::uint64_t{0} : words[i / alignment];
  }
};

/// A mask in which all elements take part. Host verbs know this at compile time and have no code for masked blocks.
struct NoMask {
  template <class Space>
  operator Mask<Space>() const {  // NOLINT: implicit
    return {};
  }
  static std::uint64_t word(index_t) { return ~std::uint64_t{0}; }
};

/// The absence of incoming packets: functors are called without a sum.
struct NoPackets {};

/// The packets from peers, over the range that the verb runs on. For each element, functors receive the sum over the
/// packets, in the given order, of weight * Code::value(code, scale).
template <class Code>
struct Packets {
  struct Source {
    const std::byte* codes = nullptr;
    const typename Code::Scale* scales = nullptr;
    float weight = 1;
    std::uint32_t origin = 0;  ///< its number in `damage`
  };
  const Source* sources = nullptr;  ///< one for each packet
  int count = 0;                    ///< number of sources
  Units units;
  /// A place in the executor's memory, or nullptr. If there is a place, a sum that is not finite because of a
  /// source's value counts as 0, and the place gets the smallest origin of such sources. It holds `no_damage` before.
  std::uint64_t* damage = nullptr;
};

namespace detail {

/// The value of `damage` if all sources' values were finite: more than any origin.
inline constexpr std::uint64_t no_damage = ~std::uint64_t{0};

}  // namespace detail

/// A rank's own packet of fp32 values, source 0, and those of its neighbours. For each element, functors receive the
/// own value and the sum over the neighbours, in the given order, of weight * (value - own). It is exactly 0 if all
/// agree, and exactly opposite on both sides of a pair with equal weights. Source 0's weight is ignored.
template <class Code>
struct Differences {
  static_assert(Code::bits == 32, "terse: differences are taken between fp32 values");
  Packets<Code> packets;
};

/// Returns the bytes that `count` elements of one piece take in a packet. Codes of up to 7 bits are stored in blocks of
/// 64 elements, each block as one 64-bit word per bit, lowest bit first: element i of a piece with 1-bit codes is bit
/// i % 8 of byte i / 8. Codes of 8, 16 and 32 bits are stored one after the other. The piece ends at a multiple of 8
/// bytes.
template <int Bits>
constexpr index_t code_bytes(index_t count) {
  static_assert((Bits >= 1 && Bits <= 8) || Bits == 16 || Bits == 32, "codes have 1 to 8, 16 or 32 bits");
  if constexpr (Bits < 8) return aligned(count) / 8 * Bits;
  return (count * (Bits / 8) + 7) / 8 * 8;
}

namespace detail {

/// The smallest integer that holds a code.
template <int Bits>
using CodeElement = std::conditional_t<(Bits <= 8), std::uint8_t,
                                       std::conditional_t<Bits == 16, std::uint16_t, std::uint32_t>>;

}  // namespace detail

TERSE_NUMERICS_BEGIN

namespace detail {

// Named concepts for the functor members that kernels call, see the architecture's note on what two compilers must
// agree on.
template <class F>
concept EntersPieces = requires(F& f, const Piece& piece) {
  f.enter(piece);
};
template <class F, class Own>
concept PreparesScale = requires(const F& f, Own own) {
  f.prepare(own);
};
template <class F>
concept EntersBlocks = requires(F& f, index_t first) {
  f.enter_block(first);
};
template <class F>
concept LeavesBlocks = requires(F& f, index_t first, int count) {
  f.leave_block(first, count);
};

}  // namespace detail

/// Calls a functor's `enter(piece)`, if it has one. Verbs call it on their copy before they run elements of that piece.
/// There a functor reads scalars that apply to the whole piece.
template <class F>
TERSE_HD constexpr void enter(F& f, const Piece& piece) {
  if constexpr (detail::EntersPieces<F>) f.enter(piece);
}

namespace detail {

/// A functor with `rests()`. It returns whether, in the entered piece, an element whose sum is 0 stays unchanged, so
/// that a verb may skip it.
template <class F>
concept Rests = requires(const F& f) {
  { f.rests() } -> std::same_as<bool>;
};

/// Returns `prepare(scale)` of a functor of `pack`, called once for all elements of a unit, or the scale if it has
/// none.
template <class F, class Own>
TERSE_HD constexpr auto prepared(const F& f, Own own) {
  if constexpr (PreparesScale<F, Own>)
    return f.prepare(own);
  else
    return own;
}

/// An adapter that lets verbs call a functor without a mask argument.
template <class F>
struct WithoutMask {
  F f;
  using StreamsOf = WithoutMask;
  TERSE_HD auto streams() requires NamesStreams<F> { return f.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(f, piece); }
  TERSE_HD void operator()(const Piece& piece, index_t i, bool) { f(piece, i); }
};

/// Calls a functor's `enter_block(first)`, if it has one. Host verbs call it, and `leave_block(first, count)`, around
/// every 64 lanes from arena index `first`.
template <class F>
TERSE_HD constexpr void enter_block(F& f, index_t first) {
  if constexpr (EntersBlocks<F>) f.enter_block(first);
}
template <class F>
TERSE_HD constexpr void leave_block(F& f, index_t first, int count) {
  if constexpr (LeavesBlocks<F>) f.leave_block(first, count);
}

}  // namespace detail

/// The result of a reduction's functor.
struct Sample {
  float value = 0;  ///< value to reduce
  float bad = 0;    ///< 1 if the input was not finite
};

/// Returns |x|; vectorizable and usable in constant expressions.
TERSE_HD constexpr float magnitude(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU);
}

/// Returns keep ? x : otherwise, for functors with a mask. It works on bits. g++ would turn the plain form back into a
/// branch, since x may trap, and would not vectorize the loop around it.
TERSE_HD constexpr float keep_if(bool keep, float x, float otherwise = 0) {
  const std::uint32_t all = 0U - static_cast<std::uint32_t>(keep);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) & all) |
                              (std::bit_cast<std::uint32_t>(otherwise) & ~all));
}

/// Returns keep ? x : otherwise, for the arithmetic of oracles, which need not be fast.
TERSE_HD constexpr double keep_if(bool keep, double x, double otherwise = 0) { return keep ? x : otherwise; }

/// The largest magnitude that counts as finite. Squares of larger magnitudes, which occur in every variance and
/// norm, leave fp32's range.
inline constexpr float largest_finite = 0x1p63F;

/// Checks whether |x| is at most largest_finite by one comparison, which fails for NaN; clang would make branches of
/// two.
TERSE_HD constexpr bool is_finite(float x) { return magnitude(x) <= largest_finite; }

/// Checks whether |x| is at most largest_finite; false for NaN.
TERSE_HD constexpr bool is_finite(double x) {
  constexpr auto most = static_cast<double>(largest_finite);
  return x <= most && x >= -most;
}

namespace detail {

/// Returns a bound on the magnitude of a sum of `count` finite values.
TERSE_HD constexpr float largest_sum(int count) { return largest_finite * static_cast<float>(count); }

}  // namespace detail

/// Returns x, or, if x is not finite, 0 with a mark.
TERSE_HD constexpr Sample sanitized(float x) {
  return {keep_if(is_finite(x), x), keep_if(!is_finite(x), 1.0F)};
}

namespace detail {

/// The number of elements in one block of a reduction.
inline constexpr index_t reduction_block = 4096;

}  // namespace detail

/// Returns the floats of scratch that the host's `reduce<Statistic>` needs for units of up to `count` elements.
template <class Statistic>
constexpr index_t reduction_scratch(index_t count) {
  return (Statistic::width + 1) * ((count + detail::reduction_block - 1) / detail::reduction_block);
}

TERSE_NUMERICS_END

}  // namespace terse
