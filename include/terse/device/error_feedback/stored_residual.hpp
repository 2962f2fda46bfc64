// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/device/verbs/kernels.hpp"
#include "terse/error_feedback/stored_residual.hpp"

// Storage of StoredResidual's errors on a grid executor, with the same codes and scales as on the host.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Kernel that rounds errors into storage, with one block of threads per tile, and one thread per scale of 64
/// elements, whose terms it joins by halves.
template <class Q>
struct StoreErrorsKernel {
  static constexpr bool cooperative = true;
  using Statistic = typename Q::Statistic;
  static constexpr int rows = static_cast<int>(reduction_block) / lanes, row_stride = lanes + 1;
  struct Shared {
    float term[rows * row_stride];
  };
  Slice slice;
  ErrorsToStore<Q> arrays;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const Tile tile = slice.tile(block.index());
    const index_t place = tile.piece.offset + tile.begin - arrays.origin, count = tile.end - tile.begin;
    const float* const y = arrays.errors + place;
    typename Statistic::Scale* const scale = arrays.scales + place / lanes;
    const int thread = block.thread();
    float total[Statistic::width] = {};
    for (int c = 0; c < Statistic::width; ++c) {
      for (int l = thread; l < rows * lanes; l += block_threads) {
        float term[Statistic::width];
        Statistic::terms(l < count ? y[l] : 0.0F, term);
        shared.term[l / lanes * row_stride + l % lanes] = l < count ? term[c] : Statistic::initial;
      }
      block.sync();
      if (thread < rows) {
        float* const row = shared.term + thread * row_stride;
        for (int half = lanes / 2; half > 0; half /= 2)
          for (int l = 0; l < half; ++l) row[l] = Statistic::join(row[l], row[l + half]);
        total[c] = row[0];
      }
      block.sync();
    }
    const index_t left = count - thread * lanes;
    if (left > 0) scale[thread] = Statistic::finish(total, left < lanes ? left : lanes);
    block.sync();
    for (index_t l = thread; l < count; l += block_threads)
      arrays.codes[place + l] = static_cast<StoredCode<Q>>(Q::code(y[l], scale[l / lanes], 0));
  }
};

TERSE_NUMERICS_END

/// Rounds the errors of a range into storage.
template <GridExecutor E, class Q>
void store_errors(E ex, const Range& range, const ErrorsToStore<Q>& arrays) {
  for_each_slice<0, 0>(range, Units{}, [&](const Slice& slice, bool) {
    if (slice.tiles > 0) ex.launch(StoreErrorsKernel<Q>{slice, arrays}, slice.tiles);
  });
}

}  // namespace terse::detail
