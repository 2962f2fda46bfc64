// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"

namespace terse {

/// In which order a replica goes through its examples in an epoch. Of the ids [0, count) replica r has
/// r, r + replicas, r + 2 replicas, ..., in every epoch: copies of activations are then found again. Their order is
/// shuffled anew in each (Fisher and Yates), a function of (seed, epoch, replica) and the counts alone, so that every
/// stage of a replica works it out without a message; seed and epoch are alike on all ranks.
///
///     terse::ExampleOrder order(count, seed, epoch, grid.replica(), grid.replicas());
///     for (index_t k = 0; k < order.batches(64); ++k) pipeline.train(order.batch(k, 64));
///
/// Cost: 8 bytes and 64 random bits an example. Throws usage_error for a negative count, an epoch of 2^40 or more, and a
/// replica that is none of `replicas`; and from `batches` and `batch`, for a size below 1, and where there are fewer
/// examples than replicas, so that one would have none.
class ExampleOrder {
 public:
  ExampleOrder(index_t count, std::uint64_t seed, std::uint64_t epoch, int replica = 0, int replicas = 1);

  /// All ids of the replica, in the epoch's order.
  std::span<const std::uint64_t> order() const { return ids_; }
  index_t size() const { return static_cast<index_t>(ids_.size()); }

  /// Batches of an epoch, the same number on all replicas, which step together.
  index_t batches(index_t size) const;
  /// Batch k: `size` ids, and in the last one what is left. Where replicas have one example more than others, and those
  /// fill their last batch, that is one more than `size`: no example is left out, and no batch is empty. Valid as long as
  /// this object is. Throws usage_error where there is no such batch.
  std::span<const std::uint64_t> batch(index_t k, index_t size) const;

 private:
  index_t count_;
  int replicas_;
  std::vector<std::uint64_t> ids_;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/pipeline/example_order.ipp"
#endif
