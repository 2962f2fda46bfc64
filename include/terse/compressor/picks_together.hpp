// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>

#include "terse/core/draw.hpp"
#include "terse/core/layout.hpp"

// Selections whose picks from many units are made by the same kernels, see device/compressor/picks.hpp.

namespace terse::detail {

/// A selection of a known number of picks by magnitude.
template <class Selection>
concept PicksByRank = requires(const Selection& selection, index_t n, std::uint64_t step) {
  { selection.largest(n, step) } -> std::same_as<index_t>;
};
/// A selection by a threshold, of at most `most` picks.
template <class Selection>
concept PicksByThreshold = requires(const Selection& selection) {
  { selection.least() } -> std::same_as<float>;
};
/// A selection by the draw that all ranks share, in ascending order.
template <class Selection>
concept PicksByDraw = requires(index_t n, index_t k, index_t key, index_t e, const StepDraw& shared) {
  { Selection::drawn(n, k, key, e, shared) } -> std::same_as<std::uint32_t>;
};
/// A selection by magnitude, of a known number of picks, among `among(n)` elements that such a draw has picked from
/// n; drawn pick e has position `element`.
template <class Selection>
concept PicksAmongDrawn = requires(const Selection& selection, index_t n, index_t among, index_t key,
                                   index_t e, const StepDraw& shared) {
  { selection.largest_among_drawn(n, std::uint64_t{}) } -> std::same_as<index_t>;
  { selection.among(n) } -> std::same_as<index_t>;
  { Selection::element(n, among, key, e, shared) } -> std::same_as<std::uint32_t>;
};
template <class Selection>
concept PicksTogether = PicksByRank<Selection> || PicksByThreshold<Selection> || PicksByDraw<Selection> ||
    PicksAmongDrawn<Selection>;

}  // namespace terse::detail
