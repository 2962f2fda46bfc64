// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "terse/executor/host.hpp"

namespace terse {

/// f(e) for each of `count` entries; no order is promised.
template <class F>
TERSE_FLATTEN inline void for_each_entry(executor::host, index_t count, F f) {
  for (index_t e = 0; e < count; ++e) f(e);
}
/// A grid's, defined in executor/grid_sparse.hpp. There f may know of fewer, `entries()` in the executor's memory.
template <GridExecutor E, class F>
void for_each_entry(E executor, index_t count, F f);

/// What came from peers as picked elements. A Source yields its entries in ascending order of the arena index:
/// `rewind()`, then `add(first, count, sum)` for one window after the other, which adds weight * value of the
/// entries in [first, first + count) to sum[arena index - first].
template <class S>
struct SparsePackets {
  S* sources = nullptr;
  int count = 0;
};

/// The same as sums for the arena indices from `begin` on: what a grid executor makes of picked elements.
struct ArrivedSums {
  const float* sums = nullptr;
  index_t begin = 0;
};

namespace detail {

template <class S>
struct Cursor<SparsePackets<S>> {
  static constexpr int streams = 1;
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

namespace detail {

template <class T>
struct Gather {
  const T* values;
  const std::uint32_t* positions;
  T* picked;
  TERSE_HD void operator()(index_t e) const { picked[e] = values[positions[e]]; }
};

}  // namespace detail

/// picked[e] = values[positions[e]]; `picked` may be `positions`.
template <Executor E, class T>
void gather(E executor, view<const T, typename E::memory> values,
            view<const std::uint32_t, typename E::memory> positions, view<T, typename E::memory> picked) {
  for_each_entry(executor, positions.size(),
                 detail::Gather<T>{values.data(), positions.data(), picked.data()});
}

}  // namespace terse
