// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "terse/core/ones.hpp"
#include "terse/executor/host.hpp"

namespace terse {

/// Calls f(e) for each of `count` entries, in no particular order.
template <class F>
TERSE_FLATTEN inline void for_each_entry(executor::host, index_t count, F f) {
  for (index_t e = 0; e < count; ++e) f(e);
}
/// Calls f(e) on a grid executor; defined in device/verbs/sparse.hpp. There f may have `entries()`, a smaller count in
/// the executor's memory.
template <GridExecutor E, class F>
void for_each_entry(E executor, index_t count, F f);

namespace detail {

/// Packets of picked elements from peers. A Source yields its entries in ascending order of the arena index, after
/// `rewind()`. Either call `add(first, count, sum)` for one window after the other; it adds weight * value of the
/// entries in [first, first + count) to sum[arena index - first]. Or go entry by entry: `index()`, at the end larger
/// than all others', `weighted()`, its weight * value, and `next()`.
template <class S>
struct SparsePackets {
  S* sources = nullptr;  ///< one for each packet
  int count = 0;         ///< number of sources
};

}  // namespace detail

/// Incoming sums for the arena indices from `begin` on, which a grid executor makes of picked elements, and the host
/// of tiles (compressor/tiled.hpp).
struct ArrivedSums {
  const float* sums = nullptr;  ///< one for each arena index
  index_t begin = 0;            ///< the arena index of the first sum
};

TERSE_NUMERICS_BEGIN

namespace detail {

template <class S>
struct Cursor<SparsePackets<S>> {
  static constexpr int streams = 1;
  explicit Cursor(SparsePackets<S> given) : packets(given) {
    for (int k = 0; k < packets.count; ++k) packets.sources[k].rewind();
  }
  static Units units() { return {}; }
  void next_piece(index_t) {}
  void next_units(index_t) {}
  void load(index_t first, index_t, int count, float (&sum)[lanes]) const {
    std::fill(sum, sum + lanes, 0.0F);
    for (int k = 0; k < packets.count; ++k) packets.sources[k].add(first, count, sum);
    opaque(sum);
  }

  SparsePackets<S> packets;
};

template <>
struct Cursor<ArrivedSums> {
  static constexpr int streams = 1;
  explicit Cursor(ArrivedSums given) : arrived(given) {}
  static Units units() { return {}; }
  void next_piece(index_t) {}
  void next_units(index_t) {}
  void load(index_t first, index_t, int count, float (&sum)[lanes]) const {
    std::copy_n(arrived.sums + (first - arrived.begin), count, sum);
    opaque(sum);
  }

  ArrivedSums arrived;
};

/// Elements for which values have arrived, in ascending order, with the sums of these values.
struct Arrivals {
  static constexpr int room = 4 * lanes;
  index_t index[room];
  float sum[room];
  int count = 0;
};

/// Collects the next arrivals of one source before `end`.
template <class S>
TERSE_FLATTEN inline void collect(S& given, index_t begin, index_t end, Arrivals& arrivals) {
  // A local copy, which compilers can keep in registers.
  S source = given;
  arrivals.count = 0;
  for (; source.index() < end && arrivals.count < Arrivals::room; source.next()) {
    // Entries between two pieces, which a unit of the whole range has picked.
    if (source.index() < begin) continue;
    arrivals.index[arrivals.count] = source.index();
    arrivals.sum[arrivals.count++] = 0.0F + source.weighted();
  }
  given = source;
}
/// Collects the next arrivals of several sources before `end`, block by block; skips blocks without arrivals.
template <class S>
TERSE_FLATTEN inline void collect(S* sources, int count, index_t begin, index_t end, Arrivals& arrivals) {
  alignas(64) float sum[lanes];
  arrivals.count = 0;
  while (arrivals.count <= Arrivals::room - lanes) {
    index_t next = end;
    for (int k = 0; k < count; ++k) {
      while (sources[k].index() < begin) sources[k].next();
      next = std::min(next, sources[k].index());
    }
    if (next == end) return;
    const index_t first = next - next % lanes, behind = std::min(first + lanes, end);
    std::uint64_t arrived = 0;
    for (float& s : sum) s = 0;
    for (int k = 0; k < count; ++k)
      for (S& source = sources[k]; source.index() < behind; source.next()) {
        const index_t l = source.index() - first;
        sum[l] += source.weighted();
        arrived |= std::uint64_t{1} << l;
      }
    for (; arrived != 0; arrived &= arrived - 1) {
      const int l = first_one_in(arrived);
      arrivals.index[arrivals.count] = first + l;
      arrivals.sum[arrivals.count++] = sum[l];
    }
  }
}

/// Calls f(piece, i, keep, sum) for each element of a piece that has received values. These elements are collected
/// first: in a loop that also decoded, fewer cache misses of the updates would overlap. If several sources leave few
/// blocks empty, the remaining elements are all visited.
template <class S, class Masked, class F>
TERSE_FLATTEN inline void visit(const Piece& piece, Masked mask, const Cursor<SparsePackets<S>>& cursor,
                                const F& given) {
  const auto& [sources, count] = cursor.packets;
  const index_t end = piece.offset + piece.count;
  const F f = given;
  Arrivals arrivals;
  for (index_t begin = piece.offset; begin < end;) {
    if (count == 1)
      collect(*sources, begin, end, arrivals);
    else
      collect(sources, count, begin, end, arrivals);
    if (arrivals.count == 0) return;
    for (int e = 0; e < arrivals.count; ++e) {
      const index_t i = arrivals.index[e];
      f(piece, i, (mask.word(i - i % lanes) >> i % lanes & 1) != 0, arrivals.sum[e]);
    }
    const index_t before = begin, last = arrivals.index[arrivals.count - 1];
    begin = count == 1 ? last + 1 : last - last % lanes + lanes;
    if (count > 1 && 32 * arrivals.count > begin - before && begin < end) {
      CallOnly sink;
      sweep(piece, begin - piece.offset, piece.count, mask, cursor, f, sink);
      return;
    }
  }
}

}  // namespace detail

/// Calls f in the same way as for other packets. In a piece with `rests()`, f leaves elements with a sum of 0
/// unchanged, so it may be called for arrived elements only.
template <class S, class F, class Masked = HostMask>
requires detail::Rests<F>
void for_each(executor::host, const Range& range, Masked mask, detail::SparsePackets<S> incoming, F f) {
  detail::Cursor<detail::SparsePackets<S>> cursor(incoming);
  detail::CallOnly sink;
  for (const Piece& piece : range.pieces()) {
    enter(f, piece);
    if (f.rests())
      detail::visit(piece, mask, cursor, f);
    else
      detail::sweep(piece, 0, piece.count, mask, cursor, f, sink);
  }
}

TERSE_NUMERICS_END

namespace detail {

template <class T>
struct Gather {
  const T* values;
  const std::uint32_t* positions;
  T* picked;
  TERSE_HD void operator()(index_t e) const { picked[e] = values[positions[e]]; }
};

}  // namespace detail

/// Computes picked[e] = values[positions[e]]; `picked` may be `positions`.
template <Executor E, class T>
void gather(E executor, view<const T, typename E::memory> values,
            view<const std::uint32_t, typename E::memory> positions, view<T, typename E::memory> picked) {
  for_each_entry(executor, positions.size(),
                 detail::Gather<T>{values.data(), positions.data(), picked.data()});
}

}  // namespace terse
