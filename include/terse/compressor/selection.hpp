// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "terse/compressor/positions.hpp"
#include "terse/executor/select.hpp"

// Common parts of selections.

namespace terse::detail {

/// A selection with the members that a grid executor requires.
template <class Selection, class E>
concept ListsPicks = requires(const Selection& selection, E executor, const Arrived& arrived,
                              const StepDraw& shared, PickScratch<E> scratch, out<E, std::uint32_t> positions,
                              const Report& report) {
  selection.list(executor, arrived, index_t{}, index_t{}, shared, scratch, positions);
  selection.check(executor, arrived, index_t{}, report);
};

/// Returns max(1, ceil(ratio n)), at most n.
TERSE_HD inline index_t share_of(double ratio, index_t n) {
  const auto picks = static_cast<index_t>(std::ceil(ratio * static_cast<double>(n)));
  return std::clamp(picks, std::min<index_t>(1, n), n);
}

/// Throws usage_error unless `ratio` is in (0, 1].
inline void check_ratio(const char* name, double ratio) {
  if (!(ratio > 0 && ratio <= 1))
    throw usage_error(std::string(name) + " must be in (0, 1], not " + std::to_string(ratio));
}

}  // namespace terse::detail
