// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "terse/device/compressor/picks.hpp"

// Received sections of sparse compressors on a grid executor, those of all packets in the same kernels: their shapes
// and their faults.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Sections of one compressor, as a kernel argument. If their shapes vary, a survey has found them.
struct PickedPackets {
  struct Packet {
    const std::byte* at = nullptr;
    index_t section_at = 0;
    index_t most_bytes = 0, units = 0;  // of the section
    float weight = 1;
  };
  Packet packets[most_packets];
  int count = 0;
  bool each = false;            // a range for each packet; else one for all
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
  /// Returns the number of packets for which a kernel takes separate blocks.
  TERSE_HD int side_by_side() const { return each ? 1 : count; }
};

/// Functor that walks through a packet's units. From the first invalid unit on they have no picks, so that no thread
/// reads beyond the section's end.
template <class Selection, class Coder>
struct SurveyUnits {
  Selection selection;
  PickUnits units;
  PickedPackets packets;
  Findings* findings;  // of each packet; nullptr: own packets, or checked ones

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

/// Two counters for each unit of each packet: entries, and blocks that have counted. Zero between kernels.
struct EntryCounters {
  std::uint32_t* at;

  static constexpr index_t numbers = 2 * most_packets * PickUnits::capacity;
  TERSE_HD std::uint32_t* entries(int packet, int unit) const {
    return at + 2 * (packet * PickUnits::capacity + unit);
  }
  TERSE_HD std::uint32_t* blocks(int packet, int unit) const { return entries(packet, unit) + 1; }
};

/// Kernel that checks the packets' positions and values, in the order of Positions::fault and Sparse::fault.
template <class Selection, class Coder>
struct CheckUnitsKernel {
  static constexpr bool cooperative = true;
  struct Shared {};
  PickUnits units;
  PickedPackets packets;
  Findings* findings;  // of each packet
  EntryCounters counters;

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
    const Positions::CheckList list{packets.positions(p, unit), unit.among, report.next()};
    const bool bitmap = !PicksByDraw<Selection> && Positions::is_bitmap(unit.among, list.arrived.picks);
    const index_t begin = (number - unit.first[PickUnits::items]) * PickUnits::per_block(PickUnits::items);
    std::uint32_t set = 0;
    for (index_t r = 0; r < PickUnits::per_block(PickUnits::items); r += block_threads) {
      const index_t e = begin + r + block.thread();
      if (e < values.entries()) values(e);
      if (!PicksByDraw<Selection> && e < list.entries()) list(e);
      if (bitmap && e < aligned(unit.among) / 64) set += count_bits(list, e);
    }
    if (!bitmap) return;  // the same for all threads
    set = block.sum(set);
    std::uint32_t* const population = counters.entries(p, u);
    if (block.thread() != 0) return;
    atomic_add(population, set);
    if (!is_last(counters.blocks(p, u), static_cast<std::uint32_t>(units.blocks_of(PickUnits::items, u))))
      return;
    if (*population != static_cast<std::uint64_t>(list.arrived.picks))
      list.report.note(unit.among, SectionFault::other_population);
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

}  // namespace terse::detail
