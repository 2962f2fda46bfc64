// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/section_fault.hpp"
#include "terse/core/separate.hpp"

namespace terse::detail {

TERSE_CORE const char* text_of(SectionFault fault) {
  switch (fault) {
    case SectionFault::ends_early:
      return "a section that ends early";
    case SectionFault::too_many_picks:
      return "more picks than there may be";
    case SectionFault::descending:
      return "positions that do not ascend";
    case SectionFault::beyond_end:
      return "a position beyond the end";
    case SectionFault::other_population:
      return "a bitmap of another number of positions";
    case SectionFault::not_finite:
      return "a value that is not finite";
    case SectionFault::unlikely:
      return unlikely_scale;
    case SectionFault::goes_on:
      return "a section that continues after its end";
    case SectionFault::padding:
      return "bits after its last position";
  }
  return "a section that can't be read";
}

}  // namespace terse::detail
