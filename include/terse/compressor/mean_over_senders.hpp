// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "terse/compressor/tiled.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Returns the number of senders for which a pick counts. A sign of 0 has no information about its coordinate and
/// counts as 0.
template <class Coder>
TERSE_HD float senders_of(float value) {
  return Coder::drops_loss && value == 0 ? 0.0F : 1.0F;
}

/// A coder whose picks decode to their number of senders, for any values.
template <class Values>
struct Ones : Values {};
template <class Values>
struct PickCoder<Ones<Values>> : PickCoder<Values> {
  using Coder = PickCoder<Values>;
  TERSE_HD static float read(const std::byte* wire, index_t k, index_t e) {
    return senders_of<Coder>(Coder::read(wire, k, e));
  }
};
/// A device's coder of picks, see device/compressor/code_picks.hpp.
template <class Values>
struct CodePicks;
template <class Values>
struct CodePicks<Ones<Values>> : CodePicks<Values> {};

/// Returns the factor that turns a mean over `packets` packets into one over the `senders` of a coordinate: exactly 1
/// if these are all.
TERSE_HD inline float share_of_senders(float packets, float senders) {
  return senders > 0 ? packets / senders : 0.0F;
}

/// Sums the entries in [begin, end) into sums[i - begin] and scales them to means over the senders; `senders` is
/// scratch of the same size. No source may have passed an entry from `begin` on.
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

/// The scaling, on a grid, of sums to means over the senders.
struct ShareAmongSenders {
  float* sums;
  const float* senders;
  float packets;
  TERSE_HD void operator()(index_t i) const { sums[i] *= share_of_senders(packets, senders[i]); }
};

/// Returns the same packets with picks that count as 1.
template <class Counter, class Packets>
auto counted(const Counter& counter, const Range& range, Packets packets,
             std::vector<typename Counter::Source>& room) {
  room.clear();
  for (int p = 0; p < packets.count; ++p)
    room.push_back(counter.source(range, packets.sources[p].section(), 1, packets.sources[p].shared()));
  return Counter::incoming(room.data(), packets.count);
}

/// A grid's workspace for a policy over senders, which counts the senders by a second sum of all packets.
template <class Base, class Counter, GridExecutor E>
struct CountedOnGrid : Base::template Workspace<E> {
  typename Counter::template Workspace<E> counted_senders;
  std::vector<typename Counter::Source> sources;  // as many as an inbox has held before

  CountedOnGrid(E executor, const Base& compressor, const Counter& counter, const Range& covered)
      : Base::template Workspace<E>(executor, compressor, covered),
        counted_senders(executor, counter, covered) {
    // Initializes the gaps between pieces, which are scaled as well.
    fill(executor, Base::Grid::numbers_of(*this), 0.0F);
    fill(executor, Counter::Grid::numbers_of(counted_senders), 0.0F);
  }
  ArrivedSums sum(E executor, const Base& compressor, const Counter& counter, const Range& range,
                  typename Base::Incoming packets) {
    const PlacedRange one{&range};
    const PlacedRanges ranges(&one, 1);
    if (range.pieces().empty()) return {this->sums.data(), this->begin};
    const auto picks = compressor.picker();
    Base::Grid::add(executor, *this, picks, ranges, packets);
    Counter::Grid::add(executor, counted_senders, counter.picker(), ranges,
                       counted(counter, range, packets, sources));
    const index_t at = range.begin_offset() - this->begin;
    for_each_entry(executor, range.end_offset() - range.begin_offset(),
                   ShareAmongSenders{Base::Grid::numbers_of(*this).data() + at,
                                     Counter::Grid::numbers_of(counted_senders).data() + at,
                                     static_cast<float>(packets.count)});
    return Base::Grid::elements(executor, *this, picks, ranges);
  }
};

}  // namespace detail

/// A sparse compressor whose receivers average each coordinate over its senders only, instead of over all ranks:
///
///     mean_j = 1 / |S_j| sum over S_j of v_ij        S_j: the ranks i that have picked coordinate j; 0 if there are none
///
/// This is NOT an unbiased mean, and under an error feedback it does not track the mean of the messages. A coordinate
/// sent by a single rank moves W times as far as with the mean over all ranks. If all ranks pick the same coordinates,
/// both means are bitwise equal. The code of DeMo's and SparseLoCo's authors does this, while their papers describe the
/// mean over all ranks. A pick with any value counts, also with 0, but a sign of 0 (DropQuantizationError<UnitTernary>) does not.
///
///     DeMo<MeanOverSenders<Dct<>>>{}        SparseLoCo<Adam<>, MeanOverSenders<Tiles<>>>{}
///
/// If packets have weights (clipped, or by examples), their weighted sum is multiplied by W / |S_j|. Requires a
/// topology that compresses once (AllGather, Gathered): with others no rank sees all packets of a coordinate. Wire,
/// packets and errors are those of C. Additional cost: a pass over the sums; on a device all packets' positions are
/// read twice, and there are two more arenas of n floats.
template <class C>
struct MeanOverSenders {
  static_assert(
      sizeof(C) == 0,
      "terse: MeanOverSenders takes a sparse compressor (TopK<>, Threshold<>, Chain<...>, Tiles<...>, "
      "Dct<...>): of others all ranks send every coordinate");
};

/// The old name, which version 0.2 removes.
template <class C>
using OverSenders [[deprecated("its name is MeanOverSenders")]] = MeanOverSenders<C>;

/// The policy around a sparse compressor of elements.
template <class Selection, Compressor Values, class G>
struct MeanOverSenders<Sparse<Selection, Values, G>> : Sparse<Selection, Values, G> {
  using Base = Sparse<Selection, Values, G>;
  using Counter = Sparse<Selection, detail::Ones<Values>, G>;
  using Incoming = typename Base::Incoming;

  static constexpr bool unbiased = false;
  static constexpr bool single_stage = true;
  static constexpr bool no_mean = true;
  static constexpr bool adds_together = false;

  template <Executor E>
  struct Workspace : Base::template Workspace<E> {
    buffer<float, typename E::memory> means, senders;
    index_t first;  // the arena index of means[0]

    Workspace(E executor, const MeanOverSenders& compressor, const Range& covered)
        : Base::template Workspace<E>(executor, compressor, covered),
          means(covered.end_offset() - covered.begin_offset(), uninitialized),
          senders(together, uninitialized),
          first(covered.begin_offset()) {}
  };
  template <GridExecutor E>
  struct Workspace<E> : detail::CountedOnGrid<Base, Counter, E> {
    Workspace(E executor, const MeanOverSenders& compressor, const Range& covered)
        : detail::CountedOnGrid<Base, Counter, E>(executor, compressor, compressor.counter(), covered) {}
  };

  /// Returns the sums of the packets received over `range`, scaled so that their mean over the packets is the mean over
  /// the senders.
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
    return workspace.sum(executor, *this, counter(), range, packets);
  }

 private:
  static constexpr index_t together = 4096;  // elements
  Counter counter() const { return {this->selection, {this->values}}; }
};

/// The policy around a sparse compressor of tiles' coefficients.
template <class Basis, int S, class Selection, Compressor Values>
struct MeanOverSenders<Tiled<Basis, S, Sparse<Selection, Values, PerSegment>>>
    : Tiled<Basis, S, Sparse<Selection, Values, PerSegment>> {
  using Base = Tiled<Basis, S, Sparse<Selection, Values, PerSegment>>;
  using Counter = Tiled<Basis, S, Sparse<Selection, detail::Ones<Values>, PerSegment>>;
  using Incoming = typename Base::Incoming;
  using typename Base::Units;

  static constexpr bool unbiased = false;
  static constexpr bool single_stage = true;
  static constexpr bool no_mean = true;
  static constexpr bool adds_together = false;

  template <Executor E>
  struct Workspace : Base::template Workspace<E> {
    float senders[static_cast<std::size_t>(S) * S];

    Workspace(E executor, const MeanOverSenders& compressor, const Range& covered)
        : Base::template Workspace<E>(executor, compressor, covered) {}
  };
  template <GridExecutor E>
  struct Workspace<E> : detail::CountedOnGrid<Base, Counter, E> {
    Workspace(E executor, const MeanOverSenders& compressor, const Range& covered)
        : detail::CountedOnGrid<Base, Counter, E>(executor, compressor, compressor.counter(), covered) {}
  };

  /// Returns the sums of received packets. Coefficients are scaled by their number of senders, then transformed.
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
    return workspace.sum(executor, *this, counter(), range, packets);
  }

 private:
  Counter counter() const { return {{this->inner.selection, {this->inner.values}}}; }
};

namespace detail {
template <class C>
inline constexpr bool has_sound_parts<MeanOverSenders<C>> = has_sound_parts<C>;
}

TERSE_NUMERICS_END

}  // namespace terse
