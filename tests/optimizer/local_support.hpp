// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mixing_support.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/overlap_local_sgd.hpp"
#include "terse/optimizer/local/streaming_diloco.hpp"
#include "terse/optimizer/momentum_sgd.hpp"

// What the tests of local methods share.

namespace terse::test {

/// A plain inner step. The same type as with momentum, for the sake of compile time.
inline MomentumSgd<> plain() { return {.momentum_correction = {.momentum = 0}}; }

/// Some segments are not compressed.
inline Layout partly_compressed() {
  const Layout whole = odd_sizes();
  Layout layout;
  for (Segment segment : whole.segments()) {
    segment.compress = segment.name != "seven" && segment.name != "v65";
    layout.add(segment);
  }
  return layout;
}

/// What a rank sends where all take the exact mean of one vector.
inline Sent one_mean(const Layout& layout, int ranks, int rank) {
  Layout plain;
  for (Segment segment : layout.segments()) {
    segment.compress = false;
    plain.add(segment);
  }
  return formula<ScatterGather>(plain, ranks, rank, [](const Range&) { return std::uint64_t{0}; });
}

}  // namespace terse::test
