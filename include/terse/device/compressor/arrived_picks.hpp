// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "terse/compressor/sparse_functors.hpp"
#include "terse/device/compressor/units.hpp"

// Received sections of sparse compressors on a grid executor: their shapes and their faults, for all packets in the
// same kernels.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Sections of one compressor, as a kernel argument. If their shapes vary, a survey has found them.
struct PickedPackets {
  struct Packet {
    const std::byte* at = nullptr;  // from which offsets count
    float weight = 1;
  };
  Packet packets[most_packets];
  int count = 0;
  bool each = false;            // a range for each packet; otherwise one for all
  UnitPlace* places = nullptr;  // of each packet's units; nullptr: shapes don't vary
  index_t most_units = 0;       // of a packet

  TERSE_HD UnitPlace& place(int packet, index_t unit) const { return places[packet * most_units + unit]; }
  TERSE_HD Arrived positions(int packet, const SentUnit& unit) const {
    const std::byte* const at = packets[packet].at;
    if (places == nullptr) return {at + unit.positions_at, unit.k};
    const UnitPlace& found = place(packet, unit.number);
    return {at + found.positions, found.picks};
  }
  TERSE_HD Arrived values(int packet, const SentUnit& unit) const {
    const std::byte* const at = packets[packet].at;
    if (places == nullptr) return {at + unit.values_at, unit.k};
    const UnitPlace& found = place(packet, unit.number);
    return {at + found.values, found.picks};
  }
  /// Returns the number of packets for which a kernel takes separate blocks.
  TERSE_HD int side_by_side() const { return each ? 1 : count; }
};

/// Functor that walks through a packet's units. From the first invalid unit on, units have no picks, so that no
/// thread reads beyond the section's end.
template <class Sections>
struct SurveyUnits {
  struct Extent {
    index_t begin, end;  // of the longest section
    index_t units;
  };
  SentUnits<Sections> units;
  PickedPackets packets;
  Extent extents[most_packets];
  Findings* findings;  // of each packet; nullptr for own packets, or checked ones

  TERSE_HD void operator()(index_t p) const {
    const int packet = static_cast<int>(p);
    const Extent& here = extents[packet];
    index_t end = here.end;
    if (findings != nullptr) {
      const auto length = load_from_wire<PacketHeader>(packets.packets[packet].at).length;
      if (length < static_cast<std::uint64_t>(end)) end = static_cast<index_t>(length);
    }
    for (int e = 0; e < units.count; ++e) {
      if (units.entries[e].packet >= 0 && units.entries[e].packet != packet) continue;
      for (index_t tile = 0; tile < units.entries[e].tiles.count(); ++tile) {
        const SentUnit unit = units.unit(e, tile);
        const index_t at = unit.number == 0 ? here.begin : packets.place(packet, unit.number - 1).end;
        const UnitPlace place = at < 0 ? UnitPlace{} : read(packet, unit, at, end);
        packets.place(packet, unit.number) = place;
        if (unit.number + 1 == here.units && place.end >= 0 && place.end != end)
          note(packet, here.units, SectionFault::goes_on);
      }
    }
  }

 private:
  TERSE_HD UnitPlace read(int packet, const SentUnit& unit, index_t at, index_t end) const {
    if (end - at < 8) return note(packet, unit.number, SectionFault::ends_early);
    const auto k = load_from_wire<index_t>(packets.packets[packet].at + at);
    if (k < 0 || k > unit.k) return note(packet, unit.number, SectionFault::too_many_picks);
    const index_t positions = at + 8, values = positions + units.sections.selection.index_bytes(unit.n, k);
    const index_t behind = values + Sections::Coder::bytes(k);
    if (end < behind) return note(packet, unit.number, SectionFault::ends_early);
    return {k, positions, values, behind};
  }
  TERSE_HD UnitPlace note(int packet, index_t unit, SectionFault fault) const {
    if (findings != nullptr) Report{findings + packet, unit}.note(0, fault);
    return {};
  }
};

/// Two counters for each unit of each packet: entries, and blocks that have counted. Zero between kernels. For units of
/// several blocks.
struct EntryCounters {
  std::uint32_t* at;

  static constexpr index_t numbers = 2 * most_packets * PickUnits::capacity;
  TERSE_HD std::uint32_t* entries(int packet, int unit) const {
    return at + 2 * (packet * PickUnits::capacity + unit);
  }
  TERSE_HD std::uint32_t* blocks(int packet, int unit) const { return entries(packet, unit) + 1; }
};

/// Kernel that checks the packets' positions and values, in the order of Positions::fault and Sparse::fault.
template <class Sections>
struct CheckUnitsKernel {
  static constexpr bool cooperative = true;
  static constexpr bool lists = !PicksByDraw<decltype(Sections::selection)>;
  using Units = SentUnits<Sections>;
  using Coder = typename Sections::Coder;
  struct Shared {};
  Units units;
  PickedPackets packets;
  Findings* findings;  // of each packet
  EntryCounters counters;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const index_t blocks = units.blocks[Units::items];
    const SentUnit unit = units.part(Units::items, block.index() % blocks);
    const int p = unit.packet < 0 ? static_cast<int>(block.index() / blocks) : unit.packet;
    const Report report{findings + p, unit.number};
    const CheckValues<Coder> values{packets.values(p, unit), Sections::limit(unit.n, unit.k), report.last()};
    const Positions::CheckList list{packets.positions(p, unit), unit.among, report.next()};
    const bool bitmap = lists && Positions::is_bitmap(unit.among, list.arrived.picks);
    const index_t words = bitmap ? aligned(unit.among) / 64 : 0, positions = lists ? list.entries() : 0;
    const index_t floats = values.entries(), step = unit.blocks * block_threads;
    std::uint32_t set = 0;
    for (index_t e = unit.block * block_threads + block.thread(); e < floats || e < positions || e < words;
         e += step) {
      if (e < floats) values(e);
      if (e < positions) list(e);
      if (e < words) set += count_bits(list, e);
    }
    if (!bitmap) return;  // the same for all threads
    set = static_cast<std::uint32_t>(block.sum(set));
    if (block.thread() != 0) return;
    if (unit.blocks > 1) {
      std::uint32_t* const population = counters.entries(p, unit.entry);
      atomic_add(population, set);
      if (!is_last(counters.blocks(p, unit.entry), static_cast<std::uint32_t>(unit.blocks))) return;
      set = *population;
      *population = 0;
    }
    if (set != static_cast<std::uint64_t>(list.arrived.picks))
      list.report.note(unit.among, SectionFault::other_population);
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
