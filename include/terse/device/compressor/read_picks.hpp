// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/device/compressor/add_picks.hpp"

// Reading sections of sparse compressors on a grid executor: the launches, and the memory that they require.

namespace terse::detail {

/// Reader of the sections of many units.
template <GridExecutor E>
class UnitReader {
 public:
  UnitReader() = default;
  /// Allocates for parts of `units` units of n elements altogether. `places`: their shapes vary; `starts`: positions
  /// are sent.
  UnitReader(index_t n, index_t units, bool places, bool starts)
      : units_(units),
        places_(places ? units * most_packets : 0, unwritten),
        before_(starts ? most_packets * (blocks_for(n, placed_together) + PickUnits::capacity) : 0,
                unwritten),
        counters_(starts ? EntryCounters::numbers : 0) {}

  /// Calls use(units) for slices of the units of `packets` over `ranges`: all packets over the same range, or each over
  /// its own.
  template <class UnitsOf, class Sections, class Use>
  void for_each_slice(E ex, const Sections& sections, PickedPackets& packets, PlacedRanges ranges,
                      Findings* findings, Use use) {
    using Selection = decltype(sections.selection);
    using Coder = typename Sections::Coder;
    const Selection& selection = sections.selection;
    packets.each = ranges.size() > 1;
    if (Selection::variable) packets.places = places_.data();
    packets.most_units = units_;
    for (int p = 0; p < packets.count; ++p) {
      const Range& range = *ranges[packets.each ? static_cast<std::size_t>(p) : 0].range;
      packets.packets[p].most_bytes = sections.bytes(range);
      packets.packets[p].units = 0;
      for (UnitsOf all(range); all.more(); all.next()) ++packets.packets[p].units;
    }
    PickUnits units;
    const auto flush = [&] {
      if (units.count == 0) return;
      if constexpr (Selection::variable)
        for_each_entry(ex, packets.count, SurveyUnits<Selection, Coder>{selection, units, packets, findings});
      use(static_cast<const PickUnits&>(units));
      units = {};
    };
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      index_t at = 0, number = 0;
      for (UnitsOf all(*ranges[r].range); all.more(); all.next(), ++number) {
        PickUnits::Unit unit;
        unit.piece = all.unit();
        unit.among = picked_from(selection, unit.piece.count);
        unit.number = number;
        unit.packet = packets.each ? static_cast<int>(r) : -1;
        const index_t n = unit.piece.count, k = unit.k = selection.most(n);
        unit.limit = sections.limit(n, k);
        unit.positions_at = at;
        unit.values_at = at + selection.index_bytes(n, k);
        at = unit.values_at + Coder::bytes(k);
        units.add(unit, CheckUnitsKernel<Selection, Coder>::items(selection, n, k));
        if (units.count == PickUnits::capacity) flush();
      }
    }
    flush();
  }

  /// Calls visit(u, unit, positions, picked values) for the units of one section. Notes faults of their shapes in
  /// `findings`, unless nullptr.
  template <class UnitsOf, class Sections, class Visit>
  void for_each_unit(E ex, const Sections& sections, const Range& range, const std::byte* packet,
                     index_t section_at, Findings* findings, Visit visit) {
    const PlacedRange one{&range};
    PickedPackets packets;
    packets.packets[0].at = packet;
    packets.packets[0].section_at = section_at;
    packets.count = 1;
    const std::byte* const section = packet + section_at;
    const auto visit_all = [&](const PickUnits& units) {
      for (int u = 0; u < units.count; ++u) {
        const PickUnits::Unit& unit = units.units[u];
        if constexpr (decltype(sections.selection)::variable) {
          const UnitPlace* const place = packets.places + unit.number;
          visit(unit.number, unit.piece, Arrived{section, unit.k, &place->positions, &place->picks},
                Arrived{section, unit.k, &place->values, &place->picks});
        } else {
          visit(unit.number, unit.piece, Arrived{section + unit.positions_at, unit.k},
                Arrived{section + unit.values_at, unit.k});
        }
      }
    };
    for_each_slice<UnitsOf>(ex, sections, packets, PlacedRanges(&one, 1), findings, visit_all);
  }

  /// Writes the weighted sums of the sources' values to `sums`, for the arena indices from `begin` on: all sources over
  /// the same range, or each over its own.
  template <class UnitsOf, class Sections, class Source>
  void add(E ex, const Sections& sections, PlacedRanges ranges, const Source* sources, int count, float* sums,
           index_t begin) {
    using Selection = decltype(sections.selection);
    for (int first = 0; first < count; first += most_packets) {
      PickedPackets some;
      for (int p = first; p < count && some.count < most_packets; ++p, ++some.count) {
        some.packets[some.count].at = sources[p].section();
        some.packets[some.count].weight = sources[p].weight();
      }
      for_each_slice<UnitsOf>(ex, sections, some, ranges, nullptr, [&](const PickUnits& units) {
        if constexpr (!PicksByDraw<Selection>) count_entries(ex, units, some);
        ex.launch(
            AddUnitsKernel<Selection, typename Sections::Coder>{units, some, before_.data(),
                                                                sources->shared(), sums, begin, first > 0},
            units.blocks[PickUnits::tiles]);
      });
    }
  }
  /// Reports the faults of packet p over ranges[p], whose section begins at that range's `going`.
  template <class UnitsOf, class Sections>
  void check(E ex, const Sections& sections, PlacedRanges ranges, const std::byte* const* packets,
             Findings* findings) {
    using Selection = decltype(sections.selection);
    PickedPackets all;
    bool same = true;
    for (const PlacedRange& placed : ranges) {
      same = same && placed.range == ranges[0].range;
      all.packets[all.count].at = packets[all.count];
      all.packets[all.count++].section_at = placed.going;
    }
    ranges = ranges.first(same ? 1 : ranges.size());
    for_each_slice<UnitsOf>(ex, sections, all, ranges, findings, [&](const PickUnits& units) {
      ex.launch(CheckUnitsKernel<Selection, typename Sections::Coder>{units, all, findings,
                                                                      EntryCounters{counters_.data()}},
                units.blocks[PickUnits::items] * all.side_by_side());
    });
  }

 private:
  /// Counts entries of long bitmaps; a list's entries are found where they are added.
  void count_entries(E ex, const PickUnits& units, const PickedPackets& packets) {
    bool long_bitmaps = false;
    for (int u = 0; u < units.count; ++u) {
      const index_t n = units.units[u].among;
      long_bitmaps = long_bitmaps || (n > placed_together && Positions::is_bitmap(n, units.units[u].k));
    }
    if (long_bitmaps)
      ex.launch(CountEntriesKernel{units, packets, before_.data(), EntryCounters{counters_.data()}},
                units.blocks[PickUnits::places] * packets.side_by_side());
  }

  index_t units_ = 0;
  buffer<UnitPlace, typename E::memory> places_;
  buffer<std::uint64_t, typename E::memory> before_;
  buffer<std::uint32_t, typename E::memory> counters_;
};

}  // namespace terse::detail
