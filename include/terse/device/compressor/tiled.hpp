// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "terse/compressor/commit_elements.hpp"
#include "terse/compressor/tiled.hpp"
#include "terse/device/compressor/sparse.hpp"
#include "terse/device/compressor/top_tiles.hpp"

// Tiled on a grid executor, by its selection.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Two arenas of tiles: the message from which a sparse compressor picks, and the values that receivers will decode.
struct TileView {
  static constexpr bool commits_zero = true;
  const float* numbers;
  float* decoded;
  index_t begin;  // the first index of both arenas

  TERSE_HD const float* at(index_t i) const { return numbers + (i - begin); }
  TERSE_HD float load(index_t i) const { return numbers[i - begin]; }
  TERSE_HD void commit(index_t i, bool, float, float value) const { decoded[i - begin] = value; }
};

/// The tables of a basis in an executor's memory.
template <class Basis, int S, GridExecutor E>
struct BasisTables {
  std::shared_ptr<const buffer<float, typename E::memory>> held;

  explicit BasisTables(const E& executor) {
    if constexpr (Basis::transforms) held = shared_tables<S>(executor);
  }
  CosineTables all() const {
    // nvcc 13.0 loses the braces around a choice in one expression.
    CosineTables tables{};
    if (held != nullptr) tables.all = held->data();
    return tables;
  }
};

/// Grid implementation for any selection: picks from an arena of numbers, unit by unit or all together, as Sparse does.
template <class Basis, int S, class Selection, class Values>
struct OnGrid<Tiled<Basis, S, Sparse<Selection, Values, PerSegment>>> {
  using Granularity = typename Tiled<Basis, S, Sparse<Selection, Values, PerSegment>>::Granularity;
  using Picker = Sparse<Selection, Values, Granularity>;
  using Incoming = typename Picker::Incoming;
  static constexpr bool adds_together = Picker::adds_together;
  /// False with lossy values: their coders require units that begin at multiples of 64.
  static constexpr bool encodes_together = Picker::encodes_together && Values::lossless;

  template <GridExecutor E>
  struct Workspace {
    typename Picker::template Workspace<E> picker;
    buffer<float, typename E::memory> sums, numbers;  // for the arena indices from `begin` on
    index_t begin;
    BasisTables<Basis, S, E> tables;

    Workspace(E executor, const Picker& picks, const Range& covered)
        : picker(executor, picks, covered),
          sums(covered.end_offset() - covered.begin_offset(), unwritten),
          numbers(covered.end_offset() - covered.begin_offset(), unwritten),
          begin(covered.begin_offset()),
          tables(executor) {}
  };

  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  static void encode(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                     Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                     const EncodeContext& context, std::byte* base, std::uint32_t* bad, Told told) {
    for_each(executor, ranges, mask, incoming, Materialize<Message>{message, bad});
    // Incoming packets have been read, so `sums` is free.
    const index_t begin = workspace.begin;
    for_each_tile_slice<S>(ranges, [&](const TileSlice<S>& slice) {
      executor.launch(
          ForwardTilesKernel<Basis, S>{slice,
                                       {feedback.at(begin), begin, workspace.numbers.data(), begin},
                                       workspace.tables.all(),
                                       largest_finite * Granularity::limit_share,
                                       bad},
          slice.tiles);
    });
    for (const PlacedRange& placed : ranges)
      if (const Range& range = *placed.range; !range.pieces().empty())
        fill(executor,
             workspace.sums.all().part(range.begin_offset() - begin,
                                       range.end_offset() - range.begin_offset()),
             0.0F);
    const TileView view{workspace.numbers.data(), workspace.sums.data(), begin};
    if constexpr (encodes_together) {
      Picker::Grid::pick_together(picker, executor, workspace.picker, ranges, view, context, base, told);
    } else {
      for (std::size_t c = 0; c < ranges.size(); ++c) {
        std::byte *const section = base + ranges[c].going, *at = section;
        for (UnitsOf<Granularity> units(*ranges[c].range); units.more(); units.next())
          at = picker.encode_unit(executor, workspace.picker, units.unit(), view, context, at);
        told(static_cast<int>(c), at - section);
      }
    }
    inverse(executor, workspace, ranges, workspace.sums.data(), workspace.numbers.data());
    for_each(executor, ranges, mask, NoPackets{},
             CommitElements<Feedback>{feedback, {workspace.numbers.data(), begin}});
  }
  /// Computes the weighted sums of received packets in the basis's coordinates, in `numbers_of`, where a tile's numbers
  /// are adjacent.
  template <GridExecutor E>
  static void add(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                  Incoming packets) {
    if constexpr (adds_together)
      if (ranges.size() > 1) {
        picker.arrived(executor, workspace.picker, ranges, packets);
        return;
      }
    picker.arrived(executor, workspace.picker, *ranges[0].range, packets);
  }
  template <GridExecutor E>
  static view<float, typename E::memory> numbers_of(Workspace<E>& workspace) {
    return workspace.picker.sums.all();
  }
  /// Transforms the sums to elements.
  template <GridExecutor E>
  static ArrivedSums elements(E executor, Workspace<E>& workspace, const Picker&, PlacedRanges ranges) {
    inverse(executor, workspace, ranges, workspace.picker.sums.data(), workspace.sums.data());
    return {workspace.sums.data(), workspace.begin};
  }
  /// Computes the weighted sums and transforms them to elements.
  template <GridExecutor E>
  static ArrivedSums arrived(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                             Incoming packets) {
    add(executor, workspace, picker, ranges, packets);
    return elements(executor, workspace, picker, ranges);
  }
  template <GridExecutor E>
  static void check(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                    const std::byte* const* packets, Findings* findings) {
    if constexpr (adds_together)
      picker.check(executor, workspace.picker, ranges, packets, findings);
    else
      picker.check(executor, workspace.picker, *ranges[0].range, packets[0], ranges[0].going, findings);
  }

 private:
  template <GridExecutor E>
  static void inverse(E executor, Workspace<E>& workspace, PlacedRanges ranges, const float* from,
                      float* to) {
    for_each_tile_slice<S>(ranges, [&](const TileSlice<S>& slice) {
      executor.launch(
          InverseTilesKernel<Basis, S>{
              slice, {from, workspace.begin, to, workspace.begin}, workspace.tables.all()},
          slice.tiles);
    });
  }
};

/// Grid implementation for the largest of each tile, with coders that leave room in a block's shared memory.
template <class Basis, int S, class Values>
requires takes_top_picks<Basis, S, Values>
struct OnGrid<Tiled<Basis, S, Sparse<Largest, Values, PerSegment>>> {
  using Granularity = typename Tiled<Basis, S, Sparse<Largest, Values, PerSegment>>::Granularity;
  using Picker = Sparse<Largest, Values, Granularity>;
  using Incoming = typename Picker::Incoming;
  static constexpr bool adds_together = true, encodes_together = true;
  static constexpr float limit_share = Granularity::limit_share;

  template <GridExecutor E>
  struct Workspace {
    buffer<float, typename E::memory> sums;  // for the arena indices from `begin` on
    index_t begin;
    BasisTables<Basis, S, E> tables;

    Workspace(E executor, const Picker&, const Range& covered)
        : sums(covered.end_offset() - covered.begin_offset(), unwritten),
          begin(covered.begin_offset()),
          tables(executor) {}
  };

  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  static void encode(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                     Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                     const EncodeContext& context, std::byte* base, std::uint32_t* bad, Told told) {
    using Tiles = TopTiles<S, Values>;
    using Kernel =
        TopPicksKernel<Basis, S, Values, Tiles, typename E::memory, Arriving<In>, Message, Feedback>;
    const Arriving<In> arriving(incoming);
    for_each_top_slice<S, Values>(picker.selection, ranges, [&](const Tiles& tiles) {
      executor.launch(Kernel{tiles,
                             workspace.tables.all(),
                             largest_finite * limit_share,
                             mask,
                             arriving,
                             {message, bad},
                             feedback,
                             base,
                             context.local},
                      tiles.slice.tiles);
    });
    for (std::size_t c = 0; c < ranges.size(); ++c)
      told(static_cast<int>(c), picker.wire_bytes(*ranges[c].range));
  }
  /// Computes the weighted sums of received packets as coefficients of the basis, in `numbers_of`. A tile's coefficients
  /// have the offsets of its elements.
  template <GridExecutor E>
  static void add(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                  Incoming packets) {
    sum(executor, workspace, picker, ranges, packets, false, false);
  }
  template <GridExecutor E>
  static view<float, typename E::memory> numbers_of(Workspace<E>& workspace) {
    return workspace.sums.all();
  }
  /// Transforms the sums to elements.
  template <GridExecutor E>
  static ArrivedSums elements(E executor, Workspace<E>& workspace, const Picker& picker,
                              PlacedRanges ranges) {
    return sum(executor, workspace, picker, ranges, {}, true, true);
  }
  /// Computes the weighted sums and transforms them to elements.
  template <GridExecutor E>
  static ArrivedSums arrived(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                             Incoming packets) {
    return sum(executor, workspace, picker, ranges, packets, false, true);
  }
  template <GridExecutor E>
  static void check(E executor, Workspace<E>&, const Picker& picker, PlacedRanges ranges,
                    const std::byte* const* packets, Findings* findings) {
    check_tiles<S, Values>(executor, picker.selection, ranges, packets, Picker::Coder::limit * limit_share,
                           findings);
  }

 private:
  /// Sums packets. `more`: adds to the existing numbers; `last`: transforms them to elements.
  template <GridExecutor E>
  static ArrivedSums sum(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                         Incoming packets, bool more, bool last) {
    int first = 0;
    do {
      TilePackets some;
      for (; first < packets.count && some.count < most_packets; ++first)
        some.packets[some.count++] = {packets.sources[first].section(), packets.sources[first].weight()};
      for_each_top_slice<S, Values>(picker.selection, ranges, [&](const TopTiles<S, Values>& tiles) {
        executor.launch(
            SumTilesKernel<Basis, S, Values>{tiles, some, workspace.tables.all(), workspace.sums.data(),
                                             workspace.begin, more, last && first == packets.count},
            tiles.slice.tiles);
      });
      more = true;
    } while (first < packets.count);
    return {workspace.sums.data(), workspace.begin};
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
