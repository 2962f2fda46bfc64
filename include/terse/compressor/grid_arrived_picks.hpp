// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "terse/compressor/grid_picks.hpp"

// Sections of sparse compressors that arrived on a grid executor, those of all packets by the same kernels: their shapes, their
// sums and their faults.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Sections of one compressor, as a kernel argument. Where their shapes vary, a survey has found what they are.
struct PickedPackets {
  struct Packet {
    const std::byte* at = nullptr;
    index_t section_at = 0;
    index_t most_bytes = 0, units = 0;  // of the section
    float weight = 1;
  };
  Packet packets[most_packets];
  int count = 0;
  bool each = false;            // one to each range; else all to the same
  UnitPlace* places = nullptr;  // of each packet's units; nullptr: shapes don't vary
  index_t most_units = 0;       // of a packet

  TERSE_HD UnitPlace& place(int packet, index_t unit) const { return places[packet * most_units + unit]; }
  TERSE_HD const std::byte* section(int packet) const {
    return packets[packet].at + packets[packet].section_at;
  }
  TERSE_HD Arrived positions(int packet, const PickUnits::Unit& unit) const {
    if (places == nullptr) return {section(packet) + unit.positions_at, unit.k};
    const UnitPlace& found = place(packet, unit.number);
    return {section(packet) + found.positions, found.picks};
  }
  TERSE_HD Arrived values(int packet, const PickUnits::Unit& unit) const {
    if (places == nullptr) return {section(packet) + unit.values_at, unit.k};
    const UnitPlace& found = place(packet, unit.number);
    return {section(packet) + found.values, found.picks};
  }
  /// Packets that a block of a kernel over all of them may work on.
  TERSE_HD int side_by_side() const { return each ? 1 : count; }
};

/// Walks through a packet's units. From the first one on that can't be right they have no picks, so that nobody reads behind the
/// section's end.
template <class Selection, class Coder>
struct SurveyUnits {
  Selection selection;
  PickUnits units;
  PickedPackets packets;
  Findings* findings;  // of each packet; nullptr: of this rank's own, or checked

  TERSE_HD void operator()(index_t p) const {
    const int packet = static_cast<int>(p);
    const PickedPackets::Packet& here = packets.packets[packet];
    index_t bytes = here.most_bytes;
    if (findings != nullptr) {
      const auto length = load_from_wire<PacketHeader>(here.at).length;
      if (length < static_cast<std::uint64_t>(here.section_at + bytes))
        bytes = static_cast<index_t>(length) - here.section_at;
    }
    for (int u = 0; u < units.count; ++u) {
      const PickUnits::Unit& unit = units.units[u];
      if (unit.packet >= 0 && unit.packet != packet) continue;
      const index_t at = unit.number == 0 ? 0 : packets.place(packet, unit.number - 1).end;
      const UnitPlace place = at < 0 ? UnitPlace{} : read(packet, unit, at, bytes);
      packets.place(packet, unit.number) = place;
      if (unit.number + 1 == here.units && place.end >= 0 && place.end != bytes)
        note(packet, here.units, SectionFault::goes_on);
    }
  }

 private:
  TERSE_HD UnitPlace read(int packet, const PickUnits::Unit& unit, index_t at, index_t bytes) const {
    if (bytes - at < 8) return note(packet, unit.number, SectionFault::ends_early);
    const auto k = load_from_wire<index_t>(packets.section(packet) + at);
    if (k < 0 || k > unit.k) return note(packet, unit.number, SectionFault::too_many_picks);
    const index_t positions = at + 8, values = positions + selection.index_bytes(unit.piece.count, k);
    const index_t end = values + Coder::bytes(k);
    if (bytes < end) return note(packet, unit.number, SectionFault::ends_early);
    return {k, positions, values, end};
  }
  TERSE_HD UnitPlace note(int packet, index_t unit, SectionFault fault) const {
    if (findings != nullptr) Report{findings + packet, unit}.note(0, fault);
    return {};
  }
};

/// Where the entries of each tile begin in a packet's unit; of bitmaps, where there may be some, how many entries each tile has.
struct CountEntries {
  PickUnits units;
  PickedPackets packets;
  std::uint64_t* counts;
  bool bitmaps;

  TERSE_HD void operator()(index_t number) const {
    const index_t tiles = units.blocks[PickUnits::tiles], tile = number % tiles;
    const PickUnits::Unit& unit = units.units[units.of_block(PickUnits::tiles, tile)];
    const Arrived positions =
        packets.positions(unit.packet < 0 ? static_cast<int>(number / tiles) : unit.packet, unit);
    const index_t begin = (tile - unit.first[PickUnits::tiles]) * placed_together, n = unit.piece.count;
    if (Positions::is_bitmap(n, positions.picks)) {
      const index_t all = aligned(n), end = begin + placed_together < all ? begin + placed_together : all;
      index_t set = 0;
      for (index_t i = begin; i < end; i += 64) set += ones_in(Positions::load(positions.base + i / 8));
      counts[number] = static_cast<std::uint64_t>(set);
    } else {
      const index_t before = entries_before(positions, n, begin);
      counts[number] = static_cast<std::uint64_t>(
          bitmaps ? entries_before(positions, n, begin + placed_together) - before : before);
    }
  }

 private:
  TERSE_HD static index_t entries_before(const Arrived& positions, index_t n, index_t position) {
    const Positions::List list = Positions::list_at(positions.base, n);
    index_t e = 0;
    for (index_t left = positions.picks; left > 0;) {
      const index_t half = left / 2;
      const bool before = list[e + half] < position;
      if (before) e += half + 1;
      left = before ? left - half - 1 : half;
    }
    return e;
  }
};

/// Adds the packets' values to sums, tile by tile, one packet after the other. Each position occurs once, in sections that are right;
/// what others say stays within the tile.
template <class Selection, class Coder>
struct AddUnitsKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    float sums[placed_together];
  };
  PickUnits units;
  PickedPackets packets;
  const std::uint64_t* starts;  // see CountEntries; sums of counts, or starts
  StepDraw shared_draw;
  float* sums;
  index_t begin;  // the arena index of the first sum
  bool more;      // to sums that are there

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int u = units.of_block(PickUnits::tiles, block.index());
    const PickUnits::Unit& unit = units.units[u];
    const index_t n = unit.piece.count, local = block.index() - unit.first[PickUnits::tiles];
    const index_t first = local * placed_together,
                  size = n - first < placed_together ? n - first : placed_together;
    float* const to = sums + (unit.piece.offset + first - begin);
    for (index_t i = block.thread(); i < size; i += block_threads) shared.sums[i] = more ? to[i] : 0.0F;
    block.sync();
    const int from = unit.packet < 0 ? 0 : unit.packet, behind = unit.packet < 0 ? packets.count : from + 1;
    for (int p = from; p < behind; ++p) {
      const Adding adding{shared.sums, first, size, packets.packets[p].weight, packets.values(p, unit)};
      if constexpr (PicksByDraw<Selection>) {
        // Entry e lies in stratum e, give or take its edges.
        const index_t k = adding.values.picks;
        const index_t before = first * k / n, last = (first + size) * k / n + 2;
        for (index_t e = (before > 0 ? before - 1 : 0) + block.thread(); e < k && e < last;
             e += block_threads)
          adding(Selection::drawn(n, k, unit.piece.offset, e, shared_draw), e);
      } else {
        const Arrived positions = packets.positions(p, unit);
        const std::uint64_t* const mine = starts +
                                          (unit.packet < 0 ? p : 0) * units.blocks[PickUnits::tiles] +
                                          unit.first[PickUnits::tiles];
        const auto start = static_cast<index_t>(mine[local] - mine[0]);
        if (Positions::is_bitmap(n, positions.picks))
          add_bits(block, adding, positions.base, start);
        else
          add_list(block, adding, positions, n, start,
                   first + size == n ? positions.picks : static_cast<index_t>(mine[local + 1] - mine[0]));
      }
      block.sync();
    }
    for (index_t i = block.thread(); i < size; i += block_threads) to[i] = shared.sums[i];
  }

 private:
  struct Adding {
    float* sums;
    index_t first, size;
    float weight;
    Arrived values;
    TERSE_HD void operator()(std::int64_t position, index_t e) const {
      if (position >= first && position < first + size)
        sums[position - first] += weight * Coder::read(values.base, values.picks, e);
    }
  };
  template <class Block>
  TERSE_HD static void add_list(const Block& block, const Adding& adding, const Arrived& positions, index_t n,
                                index_t start, index_t end) {
    const Positions::List list = Positions::list_at(positions.base, n);
    for (index_t e = (start > 0 ? start : 0) + block.thread(); e < end && e < positions.picks;
         e += block_threads)
      adding(list[e], e);
  }
  /// Each thread has some elements side by side.
  template <class Block>
  TERSE_HD static void add_bits(Block& block, const Adding& adding, const std::byte* bitmap, index_t start) {
    constexpr int own = static_cast<int>(placed_together / block_threads);
    static_assert(own == 16);
    const index_t at = adding.first + own * block.thread();
    std::uint32_t bits = 0, all = 0;
    if (at < adding.first + adding.size) bits = load_from_wire<std::uint16_t>(bitmap + at / 8);
    index_t e = start + block.exclusive_sum(static_cast<std::uint32_t>(ones_in(bits)), all);
    for (; bits != 0; bits &= bits - 1, ++e)
      if (e >= 0 && e < adding.values.picks) adding(at + first_one_in(bits), e);
  }
};

/// What is wrong with the packets' positions and values, in the order of Positions::fault and Sparse::fault.
template <class Selection, class Coder>
struct CheckUnitsKernel {
  static constexpr bool cooperative = true;
  struct Shared {};
  PickUnits units;
  PickedPackets packets;
  Findings* findings;          // of each packet
  std::uint32_t* populations;  // of its bitmaps, and blocks that have counted: zeros

  static index_t items(const Selection& selection, index_t n, index_t k) {
    return std::max({index_t{1}, k, Coder::floats(k), selection.index_bytes(n, k) / 8});
  }

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const index_t blocks = units.blocks[PickUnits::items], number = block.index() % blocks;
    const int u = units.of_block(PickUnits::items, number);
    const PickUnits::Unit& unit = units.units[u];
    const int p = unit.packet < 0 ? static_cast<int>(block.index() / blocks) : unit.packet;
    const Report report{findings + p, unit.number};
    const CheckValues<Coder> values{packets.values(p, unit), unit.limit, report.last()};
    const Positions::CheckList list{packets.positions(p, unit), unit.piece.count, report.next()};
    const bool bitmap = !PicksByDraw<Selection> && Positions::is_bitmap(unit.piece.count, list.arrived.picks);
    const index_t begin = (number - unit.first[PickUnits::items]) * PickUnits::per_block(PickUnits::items);
    std::uint32_t set = 0;
    for (index_t r = 0; r < PickUnits::per_block(PickUnits::items); r += block_threads) {
      const index_t e = begin + r + block.thread();
      if (e < values.entries()) values(e);
      if (!PicksByDraw<Selection> && e < list.entries()) list(e);
      if (bitmap && e < aligned(unit.piece.count) / 64) set += count_bits(list, e);
    }
    if (!bitmap) return;  // for all threads alike
    set = block.sum(set);
    std::uint32_t* const population = populations + 2 * (p * PickUnits::capacity + u);
    if (block.thread() != 0) return;
    atomic_add(population, set);
    if (!is_last(population + 1, static_cast<std::uint32_t>(units.blocks_of(PickUnits::items, u)))) return;
    if (*population != static_cast<std::uint64_t>(list.arrived.picks))
      list.report.note(unit.piece.count, SectionFault::other_population);
    *population = 0;
  }

 private:
  TERSE_HD static std::uint32_t count_bits(const Positions::CheckList& list, index_t word) {
    const std::uint64_t bits = Positions::load(list.arrived.base + 8 * word);
    if (list.n - 64 * word < 64 && bits >> (list.n - 64 * word) != 0)
      list.report.note(word, SectionFault::beyond_end);
    return static_cast<std::uint32_t>(ones_in(bits));
  }
};

TERSE_NUMERICS_END

/// What the sections of many units are read with.
template <GridExecutor E>
class UnitReader {
 public:
  UnitReader() = default;
  /// For parts of `units` units of n elements altogether. `places`: their shapes vary; `starts`: positions are sent.
  UnitReader(E ex, index_t n, index_t units, bool places, bool starts)
      : units_(units),
        places_(places ? units * most_packets : 0, unwritten),
        counts_(starts ? numbers(n) : 0, unwritten),
        scan_(starts ? (ex.exclusive_sum_bytes(numbers(n)) + 7) / 8 : 0, unwritten),
        populations_(starts ? 2 * most_packets * PickUnits::capacity : 0) {}

  /// use(units, packets) for slices of what `packets` hold over `ranges`; all over the same range, unless each has one.
  template <class UnitsOf, class Compressor, class Use>
  void for_each_slice(E ex, const Compressor& compressor, PickedPackets& packets, PlacedRanges ranges,
                      Findings* findings, Use use) {
    using Selection = decltype(compressor.selection);
    using Coder = typename Compressor::Coder;
    const Selection& selection = compressor.selection;
    packets.each = ranges.size() > 1;
    if (Selection::variable) packets.places = places_.data();
    packets.most_units = units_;
    for (int p = 0; p < packets.count; ++p) {
      const Range& range = *ranges[packets.each ? static_cast<std::size_t>(p) : 0].range;
      packets.packets[p].most_bytes = compressor.wire_bytes(range);
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
        unit.number = number;
        unit.packet = packets.each ? static_cast<int>(r) : -1;
        const index_t n = unit.piece.count, k = unit.k = selection.most(n);
        unit.limit = compressor.limit(n, k);
        unit.positions_at = at;
        unit.values_at = at + selection.index_bytes(n, k);
        at = unit.values_at + Coder::bytes(k);
        units.add(unit, CheckUnitsKernel<Selection, Coder>::items(selection, n, k));
        if (units.count == PickUnits::capacity) flush();
      }
    }
    flush();
  }

  /// The weighted sums of all packets, for the arena indices from `begin` on; `more`: on top of those that are there.
  template <class UnitsOf, class Compressor>
  void add(E ex, const Compressor& compressor, PickedPackets& packets, PlacedRanges ranges,
           const StepDraw& shared, float* sums, index_t begin, bool more) {
    using Selection = decltype(compressor.selection);
    for_each_slice<UnitsOf>(ex, compressor, packets, ranges, nullptr, [&](const PickUnits& units) {
      if constexpr (!PicksByDraw<Selection>) count_entries(ex, units, packets);
      ex.launch(AddUnitsKernel<Selection, typename Compressor::Coder>{units, packets, counts_.data(), shared,
                                                                      sums, begin, more},
                units.blocks[PickUnits::tiles]);
    });
  }
  /// What is wrong with each packet.
  template <class UnitsOf, class Compressor>
  void check(E ex, const Compressor& compressor, PickedPackets& packets, PlacedRanges ranges,
             Findings* findings) {
    using Selection = decltype(compressor.selection);
    for_each_slice<UnitsOf>(ex, compressor, packets, ranges, findings, [&](const PickUnits& units) {
      ex.launch(CheckUnitsKernel<Selection, typename Compressor::Coder>{units, packets, findings,
                                                                        populations_.data()},
                units.blocks[PickUnits::items] * packets.side_by_side());
    });
  }

 private:
  static index_t numbers(index_t n) {
    return most_packets * (blocks_for(n, placed_together) + PickUnits::capacity) + 1;
  }
  void count_entries(E ex, const PickUnits& units, const PickedPackets& packets) {
    bool bitmaps = false;
    for (int u = 0; u < units.count; ++u)
      bitmaps = bitmaps || Positions::is_bitmap(units.units[u].piece.count, units.units[u].k);
    const index_t tiles = units.blocks[PickUnits::tiles] * packets.side_by_side();
    for_each_entry(ex, tiles, CountEntries{units, packets, counts_.data(), bitmaps});
    if (bitmaps) ex.exclusive_sum(counts_.data(), tiles + 1, scan_.data());
  }

  index_t units_ = 0;
  buffer<UnitPlace, typename E::memory> places_;
  buffer<std::uint64_t, typename E::memory> counts_, scan_;
  buffer<std::uint32_t, typename E::memory> populations_;
};

/// Nothing, where the executor is the host.
struct NoUnits {
  struct Picker {};
  struct Reader {};
};
template <class E>
struct UnitsOfGrid {
  using Picker = UnitPicker<E>;
  using Reader = UnitReader<E>;
};
template <class E>
auto units_of_grid() {
  if constexpr (GridExecutor<E>)
    return UnitsOfGrid<E>{};
  else
    return NoUnits{};
}

}  // namespace terse::detail
