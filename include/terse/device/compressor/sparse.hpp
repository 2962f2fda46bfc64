// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "terse/compressor/commit_elements.hpp"
#include "terse/compressor/sparse.hpp"
#include "terse/compressor/tiled.hpp"
#include "terse/device/compressor/picks.hpp"
#include "terse/device/compressor/read_picks.hpp"
#include "terse/device/compressor/tiles.hpp"
#include "terse/device/compressor/top_picks.hpp"

// Sparse and Tiled on a grid executor: picks from pieces, whose basis is the identity, and from tiles in any basis. If
// selection and coder support it, all units are in the same kernels; otherwise units are processed one by one.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Functor that stores the compensated message through the error feedback, and sets `bad` for values that are not
/// finite.
template <class F>
struct Materialize {
  F compensate;
  std::uint32_t* bad;

  using StreamsOf = Materialize;
  TERSE_HD auto streams() requires NamesStreams<F> { return compensate.streams(); }
  TERSE_HD void enter(const Piece& piece) { terse::enter(compensate, piece); }
  TERSE_HD void enter_block(index_t first) { detail::enter_block(compensate, first); }
  template <class... Sum>
  TERSE_HD void operator()(const Piece& piece, index_t i, bool keep, Sum... sum) const {
    if (compensate(piece, i, keep, sum...).bad != 0) atomic_raise(bad);
  }
};

/// An arena of tiles as the message for a sparse compressor, and another arena for the values that receivers will
/// read.
struct TileView {
  static constexpr bool commits_zero = true;
  const float* numbers;
  float* decoded;
  index_t begin;  // the first index of both arenas

  TERSE_HD const float* at(index_t i) const { return numbers + (i - begin); }
  TERSE_HD float load(index_t i) const { return numbers[i - begin]; }
  TERSE_HD void commit(index_t i, bool, float, float value) const { decoded[i - begin] = value; }
};

/// The grid's part of a sparse compressor that picks from units of granularity G in a basis.
template <class Basis, class Selection, class Values, class G>
struct PicksOnGrid {
  using Picker = Sparse<Selection, Values, G>;
  using Coder = typename Picker::Coder;
  using Incoming = typename Picker::Incoming;
  using Sections = SparseSections<Selection, Values, G>;

 private:
  static constexpr int side = side_of<G>;
  static constexpr bool tiles = side > 0;
  /// Kernels read all units of all packets.
  static constexpr bool reads_together = PicksTogether<Selection>;
  /// A block of threads encodes each small unit, and tiles are small.
  static constexpr bool by_block = !G::units().whole && PicksAtOnce<Selection, Values, Basis, side>;
  static constexpr bool always_by_block = by_block && tiles;
  /// Kernels pick from all units of any size; lossy values require that units begin at multiples of 64.
  static constexpr bool picks_together = !always_by_block && reads_together && (!tiles || Values::lossless);
  static constexpr bool unit_by_unit = !always_by_block && !picks_together;

  struct Sizes {
    index_t units = 0, elements = 0, among = 0, picks = 0;

    Sizes(const Picker& picker, const Range& covered) {
      Picker::for_each_size(covered, [&](index_t n) {
        ++units;
        elements += n;
        among += picked_from(picker.selection, n);
        picks += picker.selection.most(n);
      });
    }
  };

 public:
  template <GridExecutor E>
  struct Workspace {
    struct Nothing {
      template <class... Any>
      explicit Nothing(const Any&...) {}
    };

    buffer<float, typename E::memory> sums;     // for the arena indices from `begin` on
    buffer<float, typename E::memory> numbers;  // the same for tiles, which are adjacent there
    index_t begin;
    BasisTables<Basis, side, E> tables;
    UnitReader<E, Basis, Sections> reader;
    std::conditional_t<picks_together, UnitPicker<E, Sections, Values>, Nothing> picker;
    std::conditional_t<unit_by_unit, typename Picker::template Room<E>, Nothing> room;

    Workspace(E executor, const Picker& picks, const Range& covered)
        : Workspace(executor, picks, covered, Sizes(picks, covered)) {}

   private:
    Workspace(E executor, const Picker& picks, const Range& covered, const Sizes& sizes)
        : sums(covered.end_offset() - covered.begin_offset(), uninitialized),
          numbers(tiles && !always_by_block ? sums.size() : 0, uninitialized),
          begin(covered.begin_offset()),
          tables(executor),
          reader(sizes.elements, sizes.units),
          picker(sizes.among, sizes.picks),
          room(executor, picks, covered) {}
  };

  /// Evaluates the message over `ranges`, picks, writes each section to `base` plus its range's `going`, and commits
  /// the decoded values. Calls told(c, bytes) for each range.
  template <GridExecutor E, class In, class Message, class Feedback, class Told>
  static void encode(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                     Mask<typename E::memory> mask, In incoming, Message message, Feedback feedback,
                     const EncodeContext& context, std::byte* base, std::uint32_t* bad, Told told) {
    if constexpr (by_block)
      if (tiles || are_small<typename Picker::UnitsOf>(ranges))
        return encode_small_units<Basis, Values>(executor, picker.sections(), workspace.tables.all(), limit(),
                                                 ranges, mask, incoming, message, feedback, context, base,
                                                 bad, told);
    if constexpr (!always_by_block) {
      for_each(executor, ranges, mask, incoming, Materialize<Message>{message, bad});
      // Incoming packets have been read, so the memory of their sums is free.
      if constexpr (tiles) {
        float *const numbers = workspace.numbers.data(), *const decoded = workspace.sums.data();
        const index_t begin = workspace.begin;
        transform<false>(executor, workspace, picker, ranges, feedback.at(begin), numbers, bad);
        clear(executor, workspace.sums.all(), begin, ranges);
        pick(executor, workspace, picker, ranges, TileView{numbers, decoded, begin}, context, base, told);
        transform<true>(executor, workspace, picker, ranges, decoded, numbers);
        for_each(executor, ranges, mask, NoPackets{}, CommitElements<Feedback>{feedback, {numbers, begin}});
      } else {
        pick(executor, workspace, picker, ranges, feedback, context, base, told);
      }
    }
  }

  /// Computes the weighted sums of received packets, which are all over the same range or each over a separate one.
  template <GridExecutor E>
  static ArrivedSums arrived(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                             Incoming packets) {
    if constexpr (reads_together) return sum(executor, workspace, picker, ranges, packets, false, true);
    add(executor, workspace, picker, ranges, packets);
    return elements(executor, workspace, picker, ranges);
  }
  /// Works in two steps: computes the sums in the basis's coordinates, in `numbers_of`, then transforms them to
  /// elements.
  template <GridExecutor E>
  static void add(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                  Incoming packets) {
    if constexpr (reads_together) {
      sum(executor, workspace, picker, ranges, packets, false, false);
    } else {
      const out<E> sums = numbers_of(workspace);
      auto& room = workspace.room;
      clear(executor, sums, workspace.begin, ranges);
      for (int p = 0; p < packets.count; ++p) {
        const auto& source = packets.sources[p];
        workspace.reader.for_each_unit(
            executor, picker.sections(), ranges[ranges.size() > 1 ? static_cast<std::size_t>(p) : 0],
            source.section(), nullptr,
            [&](const SentUnit& unit, const Arrived& positions, const Arrived& picked) {
              const auto listed = picker.selection.list(
                  executor, positions, unit.n, unit.begin, source.shared(),
                  PickScratch<E>{room.scratch.all(), room.words.all()}, room.positions.all());
              for_each_entry(executor, picked.picks,
                             AddPicks<Coder>{picked, listed, unit.n, source.weight(),
                                             sums.data() + (unit.begin - workspace.begin)});
            });
      }
    }
  }
  template <GridExecutor E>
  static out<E> numbers_of(Workspace<E>& workspace) {
    if constexpr (tiles && !reads_together) return workspace.numbers.all();
    return workspace.sums.all();
  }
  template <GridExecutor E>
  static ArrivedSums elements(E executor, Workspace<E>& workspace, const Picker& picker,
                              PlacedRanges ranges) {
    if constexpr (reads_together && Basis::transforms)
      return sum(executor, workspace, picker, ranges, {}, true, true);
    if constexpr (tiles && !reads_together)
      transform<true>(executor, workspace, picker, ranges, workspace.numbers.data(), workspace.sums.data());
    return {workspace.sums.data(), workspace.begin};
  }

  /// Reports the faults of packet p over ranges[p], whose section begins at that range's `going`.
  template <GridExecutor E>
  static void check(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                    const std::byte* const* packets, Findings* findings) {
    if constexpr (reads_together)
      return workspace.reader.check(executor, picker.sections(), ranges, packets, findings);
    else
      for (std::size_t p = 0; p < ranges.size(); ++p)
        workspace.reader.for_each_unit(
            executor, picker.sections(), ranges[p], packets[p], findings + p,
            [&](const SentUnit& unit, const Arrived& positions, const Arrived& picked) {
              const Report report{findings + p, unit.number};
              picker.selection.check(executor, positions, unit.n, report.next());
              for_each_entry(
                  executor, Coder::floats(picked.picks),
                  CheckValues<Coder>{picked, Sections::limit(unit.n, picked.picks), report.last()});
            });
  }

 private:
  /// Returns the limit of numbers.
  static constexpr float limit() {
    if constexpr (requires { G::limit_share; }) return largest_finite * G::limit_share;
    return largest_finite;
  }
  /// Picks from the message that `feedback` holds.
  template <GridExecutor E, class Feedback, class Told>
  static void pick(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                   Feedback feedback, const EncodeContext& context, std::byte* base, Told told) {
    if constexpr (unit_by_unit) {
      for (std::size_t c = 0; c < ranges.size(); ++c) {
        std::byte *const section = base + ranges[c].going, *at = section;
        for (typename Picker::UnitsOf units(*ranges[c].range); units.more(); units.next())
          at = picker.encode_unit(executor, workspace.room, units.unit(), feedback, context, at);
        told(static_cast<int>(c), at - section);
      }
    } else {
      workspace.picker(executor, picker.sections(), ranges, feedback, workspace.sums.all(), workspace.begin,
                       context, base, told);
    }
  }
  template <GridExecutor E>
  static ArrivedSums sum(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                         Incoming packets, bool more, bool last) {
    workspace.reader.add(executor, picker.sections(), ranges, packets.sources, packets.count,
                         workspace.tables.all(), workspace.sums.data(), workspace.begin, more, last);
    return {workspace.sums.data(), workspace.begin};
  }
  template <bool Back, GridExecutor E>
  static void transform(E executor, Workspace<E>& workspace, const Picker& picker, PlacedRanges ranges,
                        const float* from, float* to, std::uint32_t* bad = nullptr) {
    for_each_table(picker.sections(), ranges, [&](const SentUnits<Sections>& units) {
      executor.launch(TransformTilesKernel<Basis, Sections, Back>{units, from, to, workspace.begin,
                                                                  workspace.tables.all(), limit(), bad},
                      units.blocks[SentUnits<Sections>::elements]);
    });
  }
  template <GridExecutor E>
  static void clear(E executor, out<E> arena, index_t begin, PlacedRanges ranges) {
    for (const PlacedRange& placed : ranges)
      if (const Range& range = *placed.range; !range.pieces().empty())
        fill(executor, arena.part(range.begin_offset() - begin, range.end_offset() - range.begin_offset()),
             0.0F);
  }
};

template <class Selection, class Values, class G>
struct OnGrid<Sparse<Selection, Values, G>> : PicksOnGrid<terse::Elements, Selection, Values, G> {};
template <class Basis, int S, class Selection, class Values>
struct OnGrid<Tiled<Basis, S, Sparse<Selection, Values, PerSegment>>>
    : PicksOnGrid<Basis, Selection, Values, PerTile<S, Basis::transforms ? S : 1>> {};

TERSE_NUMERICS_END

}  // namespace terse::detail
