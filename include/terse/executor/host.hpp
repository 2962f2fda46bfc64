// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "terse/executor/lanes.hpp"
#include "terse/executor/reduction.hpp"
#include "terse/executor/sinks.hpp"
#include "terse/executor/units.hpp"

namespace terse::executor {

/// An executor that runs functors on the calling thread, in blocks of 64 lanes that the compiler vectorizes.
struct host {
  using memory = terse::memory::host;
};

}  // namespace terse::executor

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The totals of one unit; [width] is the count of values that were not finite.
template <class Statistic>
using Totals = std::array<float, Statistic::width + 1>;

template <class Statistic>
inline Totals<Statistic> no_totals() {
  Totals<Statistic> totals;
  totals.fill(Statistic::initial);
  totals[Statistic::width] = 0;
  return totals;
}

/// Joins the `blocks` results of a component by halves into the first.
template <auto Join>
TERSE_NO_INLINE void join_blocks(float* results, index_t blocks) {
  index_t half = static_cast<index_t>(std::bit_ceil(static_cast<std::uint64_t>(blocks))) / 2;
  for (; half > 0; half /= 2)
    for (index_t b = 0; b < half && b + half < blocks; ++b) results[b] = Join(results[b], results[b + half]);
}

constexpr index_t reduction_blocks(index_t elements) {
  return (elements + reduction_block - 1) / reduction_block;
}

/// Reduces the elements [first, last) of a unit that begins with element `begin` of its piece; `first` must begin a
/// block. Component c of block b goes to results[c * blocks + b].
template <class Statistic, class Masked, class Incoming, class F, class Also>
inline void reduce_blocks(const Piece& piece, index_t begin, index_t first, index_t last, Masked mask,
                          const Cursor<Incoming>& incoming, const F& f, float* results, index_t blocks,
                          const Also& also) {
  for (index_t at = first; at < last; at += reduction_block) {
    Accumulate<Statistic, Also> accumulate(also);
    sweep(piece, at, std::min(at + reduction_block, last), mask, incoming, f, accumulate);
    accumulate.finish(results + (at - begin) / reduction_block, blocks);
  }
}

/// Joins the results of a unit's blocks.
template <class Statistic>
inline Totals<Statistic> join_unit(float* results, index_t blocks) {
  Totals<Statistic> totals;
  if constexpr (JoinsTogether<Statistic>) join_halves<Statistic>(results, blocks, blocks);
  for (int c = 0; c <= Statistic::width; ++c) {
    if constexpr (!JoinsTogether<Statistic>) {
      if (c < Statistic::width)
        join_blocks<Statistic::join>(results + c * blocks, blocks);
      else
        join_blocks<sum_of_two>(results + c * blocks, blocks);
    }
    totals[static_cast<std::size_t>(c)] = results[c * blocks];
  }
  return totals;
}

template <class Statistic, class Masked, class Incoming, class F, class Also = JoinOnly>
inline Totals<Statistic> reduce_unit(const Piece& piece, index_t begin, index_t end, Masked mask,
                                     const Cursor<Incoming>& incoming, const F& f, float* scratch,
                                     const Also& also = {}) {
  const index_t blocks = reduction_blocks(end - begin);
  reduce_blocks<Statistic>(piece, begin, begin, end, mask, incoming, f, scratch, blocks, also);
  return join_unit<Statistic>(scratch, blocks);
}

}  // namespace detail

/// Returns the floats of scratch that `reduce` and `store` need over `range`.
template <class Statistic>
index_t reduction_scratch(executor::host, const Range& range, Units) {
  index_t longest = 0;
  for (const Piece& piece : range.pieces()) longest = std::max(longest, piece.count);
  return reduction_scratch<Statistic>(longest);
}

namespace detail {

template <class Sink, class Incoming, class F, class Masked, class Which>
void call_each(const Range& range, Which which, Masked mask, Incoming incoming, const F& f) {
  Cursor<Incoming> cursor(incoming);
  Sink sink;
  for_each_unit(
      range, cursor.units(), which, reduction_block,
      [&](const Piece& piece, const UnitPart& part) {
        sweep(piece, part.first, part.last, mask, cursor, f, sink);
      },
      cursor);
}

template <class Incoming, class F, class Masked, class Which>
void for_each_of(const Range& range, Which which, Masked mask, Incoming incoming, const F& f) {
  if constexpr (stores_around_cache && OnlyWrites<F>)
    if (range.elements() >= around_cache_from) return call_each<CallAround>(range, which, mask, incoming, f);
  call_each<CallOnly>(range, which, mask, incoming, f);
}

/// Packs the codes of a part of a range.
template <int Bits, bool Stochastic, class Scale, class F, class Which>
void pack_part(const Range& range, Which which, Units units, HostMask mask, const F& f, const Scale* scales,
               std::byte* wire, Draw draw) {
  CodePlace<Bits> place{wire};
  for_each_unit(
      range, units, which, reduction_block,
      [&](const Piece& piece, const UnitPart& part) {
        Codes<Bits, Stochastic, Scale> sink(scales[units.whole ? 0 : part.unit], place.wire, draw);
        sweep(piece, part.first, part.last, mask, Cursor<NoPackets>({}), f, sink);
      },
      place);
}

/// Reduces and packs the units of a part of a range.
template <class Statistic, int Bits, bool Stochastic, class Incoming, class F, class G, class Which>
void reduce_pack_part(const Range& range, Which which, Units units, HostMask mask, Incoming incoming,
                      const F& f, const G& g, float* scratch, typename Statistic::Scale* scales,
                      std::byte* wire, Draw draw, std::uint32_t* bad) {
  Cursor<Incoming> cursor(incoming);
  CodePlace<Bits> place{wire};
  for_each_unit(
      range, units, which, 0,
      [&](const Piece& piece, const UnitPart& part) {
        const auto totals = reduce_unit<Statistic>(piece, part.begin, part.end, mask, cursor, f, scratch);
        const auto scale =
            finish_unit<Statistic>(totals.data(), kept(piece, part.begin, part.end, mask), bad);
        scales[part.unit] = scale;
        Codes<Bits, Stochastic, typename Statistic::Scale> sink(scale, place.wire, draw);
        sweep(piece, part.begin, part.end, mask, Cursor<NoPackets>({}), g, sink);
      },
      cursor, place);
}

/// Pads a piece of fp32 values in a packet with zeros.
inline void end_floats(std::byte* wire, index_t count) {
  if (count % 2 != 0) std::memset(wire + 4 * count, 0, 4);
}

}  // namespace detail

/// Calls f(piece, i, keep[, sum]) for each element of the range, in no particular order.
template <class Incoming, class F, class Masked = HostMask>
void for_each(executor::host, const Range& range, Masked mask, Incoming incoming, F f) {
  detail::for_each_of(range, detail::AllOfIt{}, mask, incoming, f);
}

/// Computes scales[u] = Statistic::finish(over the samples that f(piece, i, keep[, sum]) returns in unit u). `*bad`
/// becomes 1 if a sample is bad or a total overflowed. In the latter case the unit gets the scale of an empty one.
/// Reductions have one shape everywhere. Blocks have 4096 elements, from the start of the unit, and 64 strided lanes.
/// Lanes, then blocks, are joined by halves; pieces of a whole-range unit are joined in order. `scratch` has
/// reduction_scratch<Statistic>(executor, range, units) floats. Incoming packets have the same units or, if dense,
/// none. `also` receives the samples.
template <class Statistic, class Incoming, class F, class Masked = HostMask, class Also = detail::JoinOnly>
void reduce(executor::host, const Range& range, Units units, Masked mask, Incoming incoming, F f,
            out<executor::host> scratch, out<executor::host, typename Statistic::Scale> scales,
            std::uint32_t* bad, const Also& also = {}) {
  detail::Cursor<Incoming> cursor(incoming);
  detail::Totals<Statistic> all = detail::no_totals<Statistic>();
  index_t all_kept = 0;
  detail::for_each_unit(
      range, units, detail::AllOfIt{}, 0,
      [&](const Piece& piece, const detail::UnitPart& part) {
        const auto totals = detail::reduce_unit<Statistic>(piece, part.begin, part.end, mask, cursor, f,
                                                           scratch.data(), also);
        const index_t count = detail::kept(piece, part.begin, part.end, mask);
        if (units.whole) {
          detail::join_results<Statistic>(all.data(), 1, totals.data(), 1);
          all_kept += count;
        } else {
          scales[part.unit] = detail::finish_unit<Statistic>(totals.data(), count, bad);
        }
      },
      cursor);
  if (units.whole) scales[0] = detail::finish_unit<Statistic>(all.data(), all_kept, bad);
}

/// Packs codes of f(piece, i, keep, scale of the unit, random) into `wire`, in the layout of `code_bytes`. Bits after a
/// piece's last element are 0. `random` has 16 bits of `draw` for arena index i, or is 0 unless Stochastic.
template <int Bits, bool Stochastic, class Scale, class F>
void pack(executor::host, const Range& range, Units units, HostMask mask, F f,
          in<executor::host, Scale> scales, std::byte* wire, Draw draw) {
  detail::pack_part<Bits, Stochastic>(range, detail::AllOfIt{}, units, mask, f, scales.data(), wire, draw);
}

/// Runs `reduce` with f and then `pack` with g, unit by unit while the unit is in cache. Units don't span pieces.
template <class Statistic, int Bits, bool Stochastic, class Incoming, class F, class G>
void reduce_pack(executor::host, const Range& range, Units units, HostMask mask, Incoming incoming, F f, G g,
                 out<executor::host> scratch, out<executor::host, typename Statistic::Scale> scales,
                 std::byte* wire, Draw draw, std::uint32_t* bad) {
  detail::reduce_pack_part<Statistic, Bits, Stochastic>(range, detail::AllOfIt{}, units, mask, incoming, f, g,
                                                        scratch.data(), scales.data(), wire, draw, bad);
}

/// Writes the samples that f(piece, i, keep[, sum]) returns as fp32 to `wire`, in the layout of `code_bytes<32>`, and
/// their statistic over the whole range to `scale[0]`. `bad` and `scratch` are as for `reduce`. Incoming packets are
/// dense.
template <class Statistic, class Incoming, class F>
void store(executor::host, const Range& range, Incoming incoming, F f, std::byte* wire,
           out<executor::host> scratch, out<executor::host, typename Statistic::Scale> scale,
           std::uint32_t* bad) {
  detail::Cursor<Incoming> cursor(incoming);
  detail::Totals<Statistic> all = detail::no_totals<Statistic>();
  for (const Piece& piece : range.pieces()) {
    const auto totals =
        detail::reduce_unit<Statistic>(piece, 0, piece.count, NoMask{}, cursor, f, scratch.data(),
                                       detail::StoreSamples{reinterpret_cast<float*>(wire)});
    detail::join_results<Statistic>(all.data(), 1, totals.data(), 1);
    cursor.next_piece(piece.count);
    detail::end_floats(wire, piece.count);
    wire += code_bytes<32>(piece.count);
  }
  scale[0] = detail::finish_unit<Statistic>(all.data(), range.elements(), bad);
}

/// Calls f(piece, i) for each element of the range, in no particular order.
template <class F>
void for_each(executor::host ex, const Range& range, F f) {
  for_each(ex, range, NoMask{}, NoPackets{}, detail::WithoutMask<F>{f});
}

/// Copies from.size() elements; both ranges must not overlap.
template <class T>
void copy(executor::host, in<executor::host, T> from, out<executor::host, T> to) {
  if (from.size() > 0) std::memcpy(to.data(), from.data(), static_cast<std::size_t>(from.size()) * sizeof(T));
}

/// Copies a few elements from the host into the executor's memory; `from` may change as soon as this returns.
template <class T>
void put(executor::host ex, view<const T> from, out<executor::host, T> to) {
  copy(ex, from, to);
}

/// Copies a few elements from the executor's memory to the host's; waits for all earlier work of the executor.
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
