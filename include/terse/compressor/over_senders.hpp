// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "terse/compressor/tiled.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The number of senders that a pick counts as. Where values are signs a 0 says nothing of the coordinate.
template <class Coder>
TERSE_HD float senders_of(float value) {
  return Coder::drops_loss && value == 0 ? 0.0F : 1.0F;
}

/// Picks that count as senders_of them, with no regard to their sizes.
template <class Values>
struct Ones : Values {};
template <class Values>
struct PickCoder<Ones<Values>> : PickCoder<Values> {
  using Coder = PickCoder<Values>;
  TERSE_HD static float read(const std::byte* wire, index_t k, index_t e) {
    return senders_of<Coder>(Coder::read(wire, k, e));
  }
};
/// A device's, see device/compressor/code_picks.hpp.
template <class Values>
struct CodePicks;
template <class Values>
struct CodePicks<Ones<Values>> : CodePicks<Values> {};

/// What the sum over `packets` packets is multiplied by where `senders` of them say something, so that a mean over all becomes
/// one over the senders: exactly 1 where all do.
TERSE_HD inline float share_of_senders(float packets, float senders) {
  return senders > 0 ? packets / senders : 0.0F;
}

/// sums[i - begin] of the entries in [begin, end), over the senders; `senders` has as much room. Sources stand at entries from
/// there on or before.
template <class Source>
void sum_over_senders(SparsePackets<Source> packets, index_t begin, index_t end, float* sums,
                      float* senders) {
  const index_t count = end - begin;
  std::fill_n(sums, count, 0.0F);
  std::fill_n(senders, count, 0.0F);
  for (int p = 0; p < packets.count; ++p)
    for (Source& source = packets.sources[p]; source.index() < end; source.next()) {
      if (source.index() < begin) continue;
      sums[source.index() - begin] += source.weighted();
      senders[source.index() - begin] += senders_of<typename Source::Coder>(source.value());
    }
  const auto all = static_cast<float>(packets.count);
  TERSE_LANES
  for (index_t i = 0; i < count; ++i) sums[i] *= share_of_senders(all, senders[i]);
}

/// The same on a grid, whose sums are there.
struct ShareAmongSenders {
  float* sums;
  const float* senders;
  float packets;
  TERSE_HD void operator()(index_t i) const { sums[i] *= share_of_senders(packets, senders[i]); }
};

/// The same packets, all of whose picks count as 1.
template <class Counter, class Packets>
auto counted(const Counter& counter, const Range& range, Packets packets,
             std::vector<typename Counter::Source>& room) {
  room.clear();
  for (int p = 0; p < packets.count; ++p)
    room.push_back(counter.source(range, packets.sources[p].section(), 1, packets.sources[p].shared()));
  return Counter::incoming(room.data(), packets.count);
}

}  // namespace detail

/// Has a sparse compressor's receivers average each coordinate over the ranks that have sent it, instead of over all:
///
///     mean_j = 1 / |S_j| sum over S_j of v_ij        S_j: the ranks i that have picked coordinate j; 0 where there are none
///
/// NOT an unbiased mean, and under an error feedback nothing that tracks the mean of the messages: a coordinate that one rank
/// alone has sent moves by W times as much as in the mean over all. The same, to the bit, where all ranks pick alike. What DeMo's
/// and SparseLoCo's authors run, where their papers have the mean over all. A pick counts whatever its value is, 0 included; but a
/// sign of 0 (Dropping<UnitTernary>) does not.
///
///     DeMo<OverSenders<Dct<>>>{}        SparseLoCo<Adam<>, OverSenders<Tiles<>>>{}
///
/// Where packets have weights (clipped, or by examples), their weighted sum is multiplied by W / |S_j|. Over topologies that
/// compress once (AllGather, Gathered): elsewhere nobody sees all packets of a coordinate. Wire, packets and errors are the
/// compressor's own. Cost beside its own: a pass over the sums; on a device all packets' positions are read twice, and there are
/// two more arenas of n floats.
template <class C>
struct OverSenders {
  static_assert(sizeof(C) == 0,
                "terse: OverSenders takes a sparse compressor (TopK<>, Threshold<>, Chain<...>, Tiles<...>, "
                "Dct<...>): of others all ranks send every coordinate");
};

/// The policy around a sparse compressor of elements.
template <class Selection, Compressor Values, class G>
struct OverSenders<Sparse<Selection, Values, G>> : Sparse<Selection, Values, G> {
  using Base = Sparse<Selection, Values, G>;
  using Counter = Sparse<Selection, detail::Ones<Values>, G>;
  using Incoming = typename Base::Incoming;

  static constexpr bool unbiased = false;
  static constexpr bool single_stage = true;
  static constexpr bool no_mean = true;

  template <Executor E>
  struct Workspace : Base::template Workspace<E> {
    buffer<float, typename E::memory> means, senders;
    index_t first;  // the arena index that `means` begins with

    Workspace(E executor, const OverSenders& compressor, const Range& covered)
        : Base::template Workspace<E>(executor, compressor, covered),
          means(covered.end_offset() - covered.begin_offset(), unwritten),
          senders(together, unwritten),
          first(covered.begin_offset()) {}
  };
  template <GridExecutor E>
  struct Workspace<E> : Base::template Workspace<E> {
    typename Counter::template Workspace<E> senders;
    std::vector<typename Counter::Source> sources;  // as many as an inbox has held

    Workspace(E executor, const OverSenders& compressor, const Range& covered)
        : Base::template Workspace<E>(executor, compressor, covered),
          senders(executor, compressor.counter(), covered) {
      // Between pieces there is nothing, and it is multiplied, too.
      fill(executor, this->sums.all(), 0.0F);
      fill(executor, senders.sums.all(), 0.0F);
    }
  };

  /// The sums of what came over `range`, by which the mean over the packets is the mean over the senders.
  template <Executor E>
  ArrivedSums arrived(E, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    for (int p = 0; p < packets.count; ++p) packets.sources[p].rewind();
    for (const Piece& piece : range.pieces())
      for (index_t begin = piece.offset; begin < piece.offset + piece.count; begin += together)
        detail::sum_over_senders(packets, begin, std::min(begin + together, piece.offset + piece.count),
                                 workspace.means.data() + (begin - workspace.first),
                                 workspace.senders.data());
    return {workspace.means.data(), workspace.first};
  }
  template <GridExecutor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    const ArrivedSums sums = Base::arrived(executor, workspace, range, packets);
    if (range.pieces().empty()) return sums;
    counter().arrived(executor, workspace.senders, range,
                      detail::counted(counter(), range, packets, workspace.sources));
    const index_t at = range.begin_offset() - sums.begin;
    for_each_entry(executor, range.end_offset() - range.begin_offset(),
                   detail::ShareAmongSenders{workspace.sums.data() + at, workspace.senders.sums.data() + at,
                                             static_cast<float>(packets.count)});
    return sums;
  }

 private:
  static constexpr index_t together = 4096;  // elements
  Counter counter() const { return {this->selection, {this->values}}; }
};

/// The policy around a sparse compressor of tiles' coefficients.
template <class Basis, int S, class Selection, Compressor Values>
struct OverSenders<Tiled<Basis, S, Sparse<Selection, Values, PerSegment>>>
    : Tiled<Basis, S, Sparse<Selection, Values, PerSegment>> {
  using Base = Tiled<Basis, S, Sparse<Selection, Values, PerSegment>>;
  using Counter = Tiled<Basis, S, Sparse<Selection, detail::Ones<Values>, PerSegment>>;
  using Incoming = typename Base::Incoming;
  using typename Base::Units;

  static constexpr bool unbiased = false;
  static constexpr bool single_stage = true;
  static constexpr bool no_mean = true;

  template <Executor E>
  struct Workspace : Base::template Workspace<E> {
    float senders[static_cast<std::size_t>(S) * S];

    Workspace(E executor, const OverSenders& compressor, const Range& covered)
        : Base::template Workspace<E>(executor, compressor, covered) {}
  };
  template <GridExecutor E>
  struct Workspace<E> : Base::template Workspace<E> {
    typename Counter::template Workspace<E> senders;
    std::vector<typename Counter::Source> sources;  // as many as an inbox has held

    Workspace(E executor, const OverSenders& compressor, const Range& covered)
        : Base::template Workspace<E>(executor, compressor, covered),
          senders(executor, compressor.counter(), covered) {
      // Between pieces there is nothing, and it is multiplied, too.
      fill(executor, Base::Grid::numbers_of(*this), 0.0F);
      fill(executor, Counter::Grid::numbers_of(senders), 0.0F);
    }
  };

  /// The same of the numbers in the basis's coordinates, which are transformed then.
  template <Executor E>
  ArrivedSums arrived(E, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    for (int p = 0; p < packets.count; ++p) packets.sources[p].rewind();
    for (Units units(range); units.more(); units.next()) {
      const Piece unit = units.unit();
      detail::sum_over_senders(packets, unit.offset, unit.offset + unit.count, workspace.tile,
                               workspace.senders);
      workspace.invert(units.place());
    }
    return {workspace.sums.data(), workspace.begin};
  }
  template <GridExecutor E>
  ArrivedSums arrived(E executor, Workspace<E>& workspace, const Range& range, Incoming packets) const {
    const detail::PlacedRange one{&range};
    const detail::PlacedRanges ranges(&one, 1);
    if (range.pieces().empty()) return {workspace.sums.data(), workspace.begin};
    Base::Grid::add(executor, workspace, this->picker(), ranges, packets);
    Counter::Grid::add(executor, workspace.senders, counter().picker(), ranges,
                       detail::counted(counter(), range, packets, workspace.sources));
    const index_t at = range.begin_offset() - workspace.begin;
    for_each_entry(executor, range.end_offset() - range.begin_offset(),
                   detail::ShareAmongSenders{Base::Grid::numbers_of(workspace).data() + at,
                                             Counter::Grid::numbers_of(workspace.senders).data() + at,
                                             static_cast<float>(packets.count)});
    return Base::Grid::elements(executor, workspace, this->picker(), ranges);
  }

 private:
  Counter counter() const { return {{this->inner.selection, {this->inner.values}}}; }
};

namespace detail {
template <class C>
inline constexpr bool has_sound_parts<OverSenders<C>> = has_sound_parts<C>;
}

TERSE_NUMERICS_END

}  // namespace terse
