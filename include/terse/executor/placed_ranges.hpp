// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "terse/executor/concept.hpp"

// Verbs of a grid executor take several ranges in the same kernels, each with a packet of its own.

namespace terse::detail {

struct PlacedRange {
  const Range* range = nullptr;
  index_t going = 0;       // where its codes begin, from the verb's `wire` on
  index_t scales = -1;     // where copies of its units' scales go, from `wire` on; -1: nowhere
  index_t first_unit = 0;  // among the verb's scales
  int packet = 0;          // which of OneEach it reads
};
using PlacedRanges = std::span<const PlacedRange>;

/// Packets of which each range reads but one.
template <class Code>
struct OneEach {
  Packets<Code> packets;
};

/// Packets that one verb takes in at most: they travel as a kernel argument.
inline constexpr int most_packets = 64;

}  // namespace terse::detail
