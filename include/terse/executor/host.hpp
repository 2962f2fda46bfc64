// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "terse/core/ones.hpp"
#include "terse/executor/lanes.hpp"
#include "terse/executor/reduction.hpp"
#include "terse/executor/sinks.hpp"

namespace terse::executor {

/// Runs functors on the calling thread, in blocks of 64 lanes that the compiler turns into vector
/// instructions.
struct host {
  using memory = terse::memory::host;
};

}  // namespace terse::executor

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Totals of one unit, [width] the count of what was not finite.
template <class Statistic>
using Totals = std::array<float, Statistic::width + 1>;

template <class Statistic>
inline Totals<Statistic> no_totals() {
  Totals<Statistic> totals;
  totals.fill(Statistic::initial);
  totals[Statistic::width] = 0;
  return totals;
}

/// Joins a component's `blocks` results by halves into the first.
template <auto Join>
TERSE_NO_INLINE void join_blocks(float* results, index_t blocks) {
  index_t half = static_cast<index_t>(std::bit_ceil(static_cast<std::uint64_t>(blocks))) / 2;
  for (; half > 0; half /= 2)
    for (index_t b = 0; b < half && b + half < blocks; ++b) results[b] = Join(results[b], results[b + half]);
}

template <class Statistic, bool Store = false, class Masked, class Incoming, class F>
inline Totals<Statistic> reduce_unit(const Piece& piece, index_t begin, index_t end, Masked mask,
                                     const Cursor<Incoming>& incoming, F f, float* scratch,
                                     float* wire = nullptr) {
  const index_t blocks = (end - begin + reduction_block - 1) / reduction_block;
  for (index_t b = 0; b < blocks; ++b) {
    Accumulate<Statistic, Store> accumulate(wire);
    const index_t first = begin + b * reduction_block;
    sweep(piece, first, std::min(first + reduction_block, end), mask, incoming, f, accumulate);
    accumulate.finish(scratch + b, blocks);
  }
  Totals<Statistic> totals;
  if constexpr (JoinsTogether<Statistic>) join_halves<Statistic>(scratch, blocks, blocks);
  for (int c = 0; c <= Statistic::width; ++c) {
    if constexpr (!JoinsTogether<Statistic>) {
      if (c < Statistic::width)
        join_blocks<Statistic::join>(scratch + c * blocks, blocks);
      else
        join_blocks<sum_of_two>(scratch + c * blocks, blocks);
    }
    totals[static_cast<std::size_t>(c)] = scratch[c * blocks];
  }
  return totals;
}

inline index_t kept(const Piece&, index_t begin, index_t end, NoMask) { return end - begin; }
inline index_t kept(const Piece& piece, index_t begin, index_t end, HostMask mask) {
  if (mask.words == nullptr) return end - begin;
  index_t count = 0;
  for (index_t b = begin; b < end; b += lanes) {
    std::uint64_t word = mask.word(piece.offset + b);
    if (end - b < lanes) word &= (std::uint64_t{1} << (end - b)) - 1;
    count += ones_in(word);
  }
  return count;
}

inline index_t unit_size(const Piece& piece, Units units) {
  return units.size == 0 ? piece.count : units.size;
}

}  // namespace detail

/// Floats of scratch that `reduce` and `store` need over `range`.
template <class Statistic>
index_t reduction_scratch(executor::host, const Range& range, Units) {
  index_t longest = 0;
  for (const Piece& piece : range.pieces()) longest = std::max(longest, piece.count);
  return reduction_scratch<Statistic>(longest);
}

namespace detail {

template <class Sink, class Incoming, class F, class Masked>
void call_each(const Range& range, Masked mask, Incoming incoming, const F& f) {
  Cursor<Incoming> cursor(incoming);
  Sink sink;
  for (const Piece& piece : range.pieces()) {
    const index_t size = unit_size(piece, cursor.units());
    for (index_t begin = 0; begin < piece.count; begin += size) {
      sweep(piece, begin, std::min(begin + size, piece.count), mask, cursor, f, sink);
      cursor.next_unit();
    }
    cursor.next_piece(piece.count);
  }
}

}  // namespace detail

/// f(piece, i, keep[, sum]) for each element of the range; no order is promised.
template <class Incoming, class F, class Masked = HostMask>
void for_each(executor::host, const Range& range, Masked mask, Incoming incoming, F f) {
  if constexpr (detail::stores_around_cache && detail::OnlyWrites<F>)
    if (range.elements() >= detail::around_cache_from)
      return detail::call_each<detail::CallAround>(range, mask, incoming, f);
  detail::call_each<detail::CallOnly>(range, mask, incoming, f);
}

/// scales[u] = Statistic::finish(over the samples that f(piece, i, keep[, sum]) gives in unit u). `*bad`
/// becomes 1 where a sample says so or a total overflowed (that unit gets the scale of an empty one).
/// Reductions have one shape everywhere: blocks of 4096 elements from the start of the unit, 64 strided lanes
/// in a block, lanes and then blocks joined by halves, pieces of a whole-range unit in order. `scratch` holds
/// reduction_scratch<Statistic>(executor, range, units) floats. Incoming packets have the same units or,
/// if dense, none.
template <class Statistic, class Incoming, class F, class Masked = HostMask>
void reduce(executor::host, const Range& range, Units units, Masked mask, Incoming incoming, F f,
            out<executor::host> scratch, out<executor::host, typename Statistic::Scale> scales,
            std::uint32_t* bad) {
  detail::Cursor<Incoming> cursor(incoming);
  detail::Totals<Statistic> all = detail::no_totals<Statistic>();
  index_t all_kept = 0, unit = 0;
  for (const Piece& piece : range.pieces()) {
    const index_t size = detail::unit_size(piece, units);
    for (index_t begin = 0; begin < piece.count; begin += size) {
      const index_t end = std::min(begin + size, piece.count);
      const auto totals = detail::reduce_unit<Statistic>(piece, begin, end, mask, cursor, f, scratch.data());
      const index_t count = detail::kept(piece, begin, end, mask);
      if (units.whole) {
        detail::join_results<Statistic>(all.data(), 1, totals.data(), 1);
        all_kept += count;
      } else {
        scales[unit++] = detail::finish_unit<Statistic>(totals.data(), count, bad);
      }
      cursor.next_unit();
    }
    cursor.next_piece(piece.count);
  }
  if (units.whole) scales[0] = detail::finish_unit<Statistic>(all.data(), all_kept, bad);
}

/// Codes of f(piece, i, keep, scale of the unit, random) into `wire`, laid out as `code_bytes` says. Bits
/// behind a piece's last element are 0. `random` is 16 bits of `draw` for arena index i, 0 unless Stochastic.
template <int Bits, bool Stochastic, class Scale, class F>
void pack(executor::host, const Range& range, Units units, HostMask mask, F f,
          in<executor::host, Scale> scales, std::byte* wire, Draw draw) {
  index_t unit = 0;
  for (const Piece& piece : range.pieces()) {
    const index_t size = detail::unit_size(piece, units);
    for (index_t begin = 0; begin < piece.count; begin += size) {
      detail::Codes<Bits, Stochastic, Scale> sink(scales[units.whole ? 0 : unit++], wire, draw);
      detail::sweep(piece, begin, std::min(begin + size, piece.count), mask, detail::Cursor<NoPackets>({}), f,
                    sink);
    }
    wire += code_bytes<Bits>(piece.count);
  }
}

/// `reduce` with f and then `pack` with g, unit by unit while the unit is in cache. Units don't span pieces.
template <class Statistic, int Bits, bool Stochastic, class Incoming, class F, class G>
void reduce_pack(executor::host, const Range& range, Units units, HostMask mask, Incoming incoming, F f, G g,
                 out<executor::host> scratch, out<executor::host, typename Statistic::Scale> scales,
                 std::byte* wire, Draw draw, std::uint32_t* bad) {
  detail::Cursor<Incoming> cursor(incoming);
  index_t unit = 0;
  for (const Piece& piece : range.pieces()) {
    const index_t size = detail::unit_size(piece, units);
    for (index_t begin = 0; begin < piece.count; begin += size) {
      const index_t end = std::min(begin + size, piece.count);
      const auto totals = detail::reduce_unit<Statistic>(piece, begin, end, mask, cursor, f, scratch.data());
      const index_t count = detail::kept(piece, begin, end, mask);
      const auto scale = detail::finish_unit<Statistic>(totals.data(), count, bad);
      scales[unit++] = scale;
      detail::Codes<Bits, Stochastic, typename Statistic::Scale> sink(scale, wire, draw);
      detail::sweep(piece, begin, end, mask, detail::Cursor<NoPackets>({}), g, sink);
      cursor.next_unit();
    }
    cursor.next_piece(piece.count);
    wire += code_bytes<Bits>(piece.count);
  }
}

/// Writes the samples that f(piece, i, keep[, sum]) gives as fp32 to `wire`, laid out as `code_bytes<32>`
/// says, and returns their statistic over the whole range. `bad` and `scratch` are as for `reduce`.
/// Incoming packets are dense ones.
template <class Statistic, class Incoming, class F>
void store(executor::host, const Range& range, Incoming incoming, F f, std::byte* wire,
           out<executor::host> scratch, out<executor::host, typename Statistic::Scale> scale,
           std::uint32_t* bad) {
  detail::Cursor<Incoming> cursor(incoming);
  detail::Totals<Statistic> all = detail::no_totals<Statistic>();
  for (const Piece& piece : range.pieces()) {
    const auto totals = detail::reduce_unit<Statistic, true>(piece, 0, piece.count, NoMask{}, cursor, f,
                                                             scratch.data(), reinterpret_cast<float*>(wire));
    detail::join_results<Statistic>(all.data(), 1, totals.data(), 1);
    cursor.next_piece(piece.count);
    if (piece.count % 2 != 0) std::memset(wire + 4 * piece.count, 0, 4);
    wire += code_bytes<32>(piece.count);
  }
  scale[0] = detail::finish_unit<Statistic>(all.data(), range.elements(), bad);
}

/// f(piece, i) for each element of the range; no order is promised.
template <class F>
void for_each(executor::host ex, const Range& range, F f) {
  for_each(ex, range, NoMask{}, NoPackets{}, detail::WithoutMask<F>{f});
}

/// Copies from.size() elements; the two don't overlap.
template <class T>
void copy(executor::host, in<executor::host, T> from, out<executor::host, T> to) {
  if (from.size() > 0) std::memcpy(to.data(), from.data(), static_cast<std::size_t>(from.size()) * sizeof(T));
}

/// Few elements from the host into the executor's memory; `from` may change as soon as this returns.
template <class T>
void put(executor::host ex, view<const T> from, out<executor::host, T> to) {
  copy(ex, from, to);
}

/// Brings a few elements from the executor's memory to the host's; waits for all that was asked of the executor.
template <class T>
void fetch(executor::host ex, in<executor::host, T> from, view<T> to) {
  copy(ex, from, to);
}

/// Sets all elements to `value`.
template <class T>
void fill(executor::host, out<executor::host, T> to, std::type_identity_t<T> value) {
  std::fill(to.begin(), to.end(), value);
}

TERSE_NUMERICS_END
}  // namespace terse
