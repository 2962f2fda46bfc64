// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/compressor/packed.hpp"
#include "terse/executor/atomic.hpp"

namespace terse::detail {

/// What may be wrong with a section that came from a peer.
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

/// The same in words, for a wire_error.
const char* text_of(SectionFault fault);

/// What the threads of a check have found, in an executor's memory: the first fault in the order in which the host
/// looks, so that both say the same.
struct Findings {
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  std::uint64_t first = nothing;
  std::uint32_t population = 0;  // of a bitmap that is being counted

  TERSE_HD bool any() const { return first != nothing; }
  TERSE_HD SectionFault fault() const { return static_cast<SectionFault>(first & 15); }
};

/// Notes the faults of one unit. Its stages are the section's shape, the positions of one selection after the other,
/// and the values.
struct Report {
  Findings* findings;
  index_t unit;
  int stage = 0;

  TERSE_HD Report next() const { return {findings, unit, stage + 1}; }
  TERSE_HD Report last() const { return {findings, unit, 15}; }
  /// `place` in this stage, below 2^32 as positions are. Units from the last that has a number on share that.
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
