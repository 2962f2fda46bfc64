// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "terse/executor/concept.hpp"

// Ranges for verbs of a grid executor that process several in the same kernels, each with a separate packet.

namespace terse::detail {

struct PlacedRange {
  const Range* range = nullptr;
  index_t going = 0;       // offset of its codes in the verb's `wire`
  index_t scales = -1;     // offset in `wire` of copies of its units' scales; -1 for no copies
  index_t first_unit = 0;  // number of its first unit among the verb's scales
  int packet = 0;          // number of the packet in OneEach that it reads
};
using PlacedRanges = std::span<const PlacedRange>;

/// Packets of which each range reads only one.
template <class Code>
struct OneEach {
  Packets<Code> packets;
};

/// The maximum number of packets of one verb: they are passed as a kernel argument.
inline constexpr int most_packets = 64;

}  // namespace terse::detail
