// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "terse/device/compressor/add_picks.hpp"

// Reading of sections of sparse compressors on a grid executor: the launches, and the memory that they require.

namespace terse::detail {

/// Reader of sections, whose units are pieces or tiles, in a basis.
template <GridExecutor E, class Basis, class Sections>
class UnitReader {
  using Selection = decltype(Sections::selection);
  using Units = SentUnits<Sections>;
  static constexpr bool together = PicksTogether<Selection>;
  static constexpr bool sends_positions = together && !PicksByDraw<Selection>;

 public:
  /// Allocates memory for parts of `units` units of n elements in total.
  UnitReader(index_t n, index_t units)
      : units_(units),
        places_(Selection::variable ? units * most_packets : 0, uninitialized),
        before_(sends_positions && Units::side == 0
                    ? most_packets * (blocks_for(n, placed_together) + Units::capacity)
                    : 0,
                uninitialized),
        counters_(sends_positions ? EntryCounters::numbers : 0) {}

  /// Calls visit(u, unit, positions, picked values) for the units of one section, unit by unit. Records faults of
  /// their shapes in `findings`, unless it is nullptr.
  template <class Visit>
  void for_each_unit(E ex, const Sections& sections, const PlacedRange& placed, const std::byte* packet,
                     Findings* findings, Visit visit) {
    PickedPackets packets;
    packets.packets[packets.count++].at = packet;
    for_each_table(ex, sections, packets, PlacedRanges(&placed, 1), findings, [&](const Units& units) {
      for (int e = 0; e < units.count; ++e)
        for (index_t tile = 0; tile < units.entries[e].tiles.count(); ++tile) {
          const SentUnit unit = units.unit(e, tile);
          if constexpr (Selection::variable) {
            const UnitPlace* const place = packets.places + unit.number;
            visit(unit, Arrived{packet, unit.k, &place->positions, &place->picks},
                  Arrived{packet, unit.k, &place->values, &place->picks});
          } else {
            visit(unit, Arrived{packet + unit.positions_at, unit.k},
                  Arrived{packet + unit.values_at, unit.k});
          }
        }
    });
  }

  /// Writes the weighted sums of the sources' values to `sums`, for the arena indices from `begin` on. All sources are
  /// over the same range, or each is over a separate one. `more` adds to the existing numbers; `last` transforms the
  /// sums to elements.
  template <class Source>
  void add(E ex, const Sections& sections, PlacedRanges ranges, const Source* sources, int count,
           const CosineTables& tables, float* sums, index_t begin, bool more, bool last) {
    const StepDraw shared = count > 0 ? sources->shared() : StepDraw(Draw::shared(0, 0, Purpose::selection));
    int first = 0;
    do {
      PickedPackets some;
      for (; first < count && some.count < most_packets; ++first)
        some.packets[some.count++] = {sources[first].section(), sources[first].weight()};
      for_each_table(ex, sections, some, ranges, nullptr, [&](const Units& units) {
        if constexpr (sends_positions && Units::side == 0) count_entries(ex, units, some);
        ex.launch(AddUnitsKernel<Basis, Sections>{units, some, before_.data(), shared, tables, sums, begin,
                                                  more, last && first == count},
                  units.blocks[Units::elements]);
      });
      more = true;
    } while (first < count);
  }
  /// Reports the faults of packet p over ranges[p], whose section begins at that range's `going`.
  void check(E ex, const Sections& sections, PlacedRanges ranges, const std::byte* const* packets,
             Findings* findings) {
    PickedPackets all;
    bool same = true;
    for (const PlacedRange& placed : ranges) {
      same = same && placed.range == ranges[0].range && placed.going == ranges[0].going;
      all.packets[all.count].at = packets[all.count];
      ++all.count;
    }
    ranges = ranges.first(same ? 1 : ranges.size());
    for_each_table(ex, sections, all, ranges, findings, [&](const Units& units) {
      ex.launch(CheckUnitsKernel<Sections>{units, all, findings, {counters_.data()}},
                units.blocks[Units::items] * all.side_by_side());
    });
  }

 private:
  /// Calls use(units) for slices of the units of `packets` over `ranges`, each after a survey if their shapes vary.
  template <class Use>
  void for_each_table(E ex, const Sections& sections, PickedPackets& packets, PlacedRanges ranges,
                      [[maybe_unused]] Findings* findings, const Use& use) {
    packets.each = ranges.size() > 1;
    if constexpr (!Selection::variable) {
      detail::for_each_table(sections, ranges, use);
    } else {
      packets.places = places_.data();
      packets.most_units = units_;
      SurveyUnits<Sections> survey;
      survey.findings = findings;
      for (int p = 0; p < packets.count; ++p) {
        const PlacedRange& placed = ranges[packets.each ? static_cast<std::size_t>(p) : 0];
        auto& extent = survey.extents[p] = {placed.going, placed.going + sections.bytes(*placed.range), 0};
        for (typename Sections::UnitsOf all(*placed.range); all.more(); all.next()) ++extent.units;
      }
      survey.packets = packets;
      detail::for_each_table(sections, ranges, [&](const Units& units) {
        survey.units = units;
        for_each_entry(ex, packets.count, survey);
        use(units);
      });
    }
  }
  /// Counts entries of long bitmaps; a list's entries are found when they are added.
  void count_entries(E ex, const Units& units, const PickedPackets& packets) {
    bool long_bitmaps = false;
    for (int e = 0; e < units.count; ++e) {
      const SentUnit unit = units.unit(e, 0);
      long_bitmaps =
          long_bitmaps || (unit.among > placed_together && Positions::is_bitmap(unit.among, unit.k));
    }
    if (long_bitmaps)
      ex.launch(CountEntriesKernel<Sections>{units, packets, before_.data(), {counters_.data()}},
                units.blocks[Units::elements] * packets.side_by_side());
  }

  index_t units_ = 0;
  buffer<UnitPlace, typename E::memory> places_;
  buffer<std::uint64_t, typename E::memory> before_;
  buffer<std::uint32_t, typename E::memory> counters_;
};

}  // namespace terse::detail
