// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "terse/executor/host.hpp"

namespace terse {

/// What came from peers as picked elements. A Source yields its entries in ascending order of the arena index:
/// `rewind()`, then `add(first, count, sum)` for one window after the other, which adds weight * value of the
/// entries in [first, first + count) to sum[arena index - first].
template <class S>
struct SparsePackets {
  S* sources = nullptr;
  int count = 0;
};

namespace detail {

template <class S>
struct Cursor<SparsePackets<S>> {
  explicit Cursor(SparsePackets<S> given) : packets(given) {
    for (int k = 0; k < packets.count; ++k) packets.sources[k].rewind();
  }
  static Units units() { return {}; }
  void next_piece(index_t) {}
  void next_unit() {}
  void load(index_t first, index_t, int count, float (&sum)[lanes]) const {
    std::fill(sum, sum + lanes, 0.0F);
    for (int k = 0; k < packets.count; ++k) packets.sources[k].add(first, count, sum);
    opaque(sum);
  }

  SparsePackets<S> packets;
};

}  // namespace detail

/// picked[e] = values[positions[e]].
inline void gather(executor::host, in<executor::host> values, in<executor::host, std::uint32_t> positions,
                   out<executor::host> picked) {
  for (index_t e = 0; e < positions.size(); ++e) picked[e] = values[positions[e]];
}

}  // namespace terse
