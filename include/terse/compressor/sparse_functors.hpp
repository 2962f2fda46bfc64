// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/pick_coder.hpp"
#include "terse/core/packet.hpp"

// What sparse compressors do to each pick and each unit, on host and device.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Tells the error feedback what receivers read of each pick.
template <class Coder, class Feedback>
struct CommitPicks {
  Feedback feedback;
  const std::uint32_t* positions;
  Piece unit;
  index_t k;
  const std::byte* wire;
  TERSE_HD void operator()(index_t e) const {
    Feedback here = feedback;
    enter(here, unit);
    const index_t i = unit.offset + positions[e];
    here.commit(i, true, here.load(i), Coder::read(wire, k, e));
  }
};

template <class Selection>
struct ScalePicks {
  float* picked;
  index_t n, k;
  TERSE_HD void operator()(index_t e) const { picked[e] *= Selection::factor(n, k, e); }
};

/// Where the parts of a unit begin in a section that arrived on a grid.
struct UnitPlace {
  index_t picks = 0, positions = 0, values = 0, end = -1;
};

/// Walks through a section of units whose numbers of picks vary. From the first unit on that can't be right, they have
/// none, so that nobody reads behind the section's end.
template <class Selection, class Coder>
struct SurveyUnits {
  static constexpr index_t capacity = 64;
  Selection selection;
  const std::byte* packet;
  index_t section_at, most_bytes;
  UnitPlace* places;
  index_t first = 0, count = 0;  // of these units
  bool last = false;
  Findings* findings = nullptr;  // nullptr: this rank's own section, or one that has been checked
  index_t n[capacity] = {}, most[capacity] = {};

  TERSE_HD void operator()(index_t) const {
    index_t at = first == 0 ? 0 : places[first - 1].end, bytes = most_bytes;
    if (findings != nullptr) {
      const auto length = load_from_wire<PacketHeader>(packet).length;
      if (length < static_cast<std::uint64_t>(section_at + bytes))
        bytes = static_cast<index_t>(length) - section_at;
    }
    for (index_t u = 0; u < count; ++u) {
      places[first + u] = at < 0 ? UnitPlace{} : read(first + u, at, bytes, n[u], most[u]);
      at = places[first + u].end;
    }
    if (last && at >= 0 && at != bytes) note(first + count, SectionFault::goes_on);
  }

 private:
  TERSE_HD UnitPlace read(index_t unit, index_t at, index_t bytes, index_t elements,
                          index_t most_picks) const {
    if (bytes - at < 8) return note(unit, SectionFault::ends_early);
    const auto k = load_from_wire<index_t>(packet + section_at + at);
    if (k < 0 || k > most_picks) return note(unit, SectionFault::too_many_picks);
    const index_t positions = at + 8, values = positions + selection.index_bytes(elements, k);
    const index_t end = values + Coder::bytes(k);
    if (bytes < end) return note(unit, SectionFault::ends_early);
    return {k, positions, values, end};
  }
  TERSE_HD UnitPlace note(index_t unit, SectionFault fault) const {
    if (findings != nullptr) Report{findings, unit}.note(0, fault);
    return {};
  }
};

/// Adds a unit's values to sums. Each position occurs once, in sections that are right.
template <class Coder>
struct AddPicks {
  Arrived values;
  PackedPositions positions;
  index_t n;
  float weight;
  float* sums;
  TERSE_HD index_t entries() const { return values.count(); }
  TERSE_HD void operator()(index_t e) const {
    const std::uint32_t position = positions[e];
    if (position < n) sums[position] += weight * Coder::read(values.bytes(), values.count(), e);
  }
};

template <class Coder>
struct CheckValues {
  Arrived values;
  float limit;
  Report report;
  TERSE_HD index_t entries() const { return Coder::floats(values.count()); }
  TERSE_HD void operator()(index_t f) const {
    if (!(magnitude(load_from_wire<float>(values.bytes() + 4 * f)) <= limit))
      report.note(f, Coder::beyond_limit);
  }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
