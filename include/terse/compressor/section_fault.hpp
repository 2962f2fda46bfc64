// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/compressor/packed.hpp"
#include "terse/executor/atomic.hpp"

namespace terse::detail {

/// The possible faults of a section from a peer.
enum class SectionFault : std::uint32_t {
  ends_early = 1,
  too_many_picks,
  descending,
  beyond_end,
  other_population,
  not_finite,
  unlikely,
  goes_on,
  padding
};

/// Returns the fault in words, for a wire_error.
const char* text_of(SectionFault fault);

/// The results of a check's threads, in an executor's memory: the first fault in the host's order, so that host and
/// device report the same fault.
struct Findings {
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  std::uint64_t first = nothing;
  std::uint32_t population = 0;  // of the bitmap being counted

  TERSE_HD bool any() const { return first != nothing; }
  TERSE_HD SectionFault fault() const { return static_cast<SectionFault>(first & 15); }
};

/// A recorder of one unit's faults. It has a stage for each check: the section's shape, the positions of each
/// selection, and the values.
struct Report {
  Findings* findings;
  index_t unit;
  int stage = 0;

  TERSE_HD Report next() const { return {findings, unit, stage + 1}; }
  TERSE_HD Report last() const { return {findings, unit, 15}; }
  /// Records a fault at `place` in this stage, below 2^32 as positions are. Units from number 2^24 - 1 on are
  /// recorded with that number.
  TERSE_HD void note(index_t place, SectionFault fault) const {
    constexpr index_t last = (index_t{1} << 24) - 1;
    const std::uint64_t order = static_cast<std::uint64_t>(unit < last ? unit : last) << 40 |
                                static_cast<std::uint64_t>(stage) << 36 |
                                static_cast<std::uint64_t>(place) << 4;
    atomic_lower(&findings->first, order | static_cast<std::uint64_t>(fault));
  }
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/compressor/section_fault.ipp"
#endif
