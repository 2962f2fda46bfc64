// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"

namespace terse {

/// The order of a replica's examples in an epoch. Of the ids [0, count) replica r has r, r + replicas, r + 2 replicas,
/// ..., the same ids in every epoch, so that copies of activations are found again. Their order is shuffled in each
/// epoch (Fisher and Yates). The order depends only on (seed, epoch, replica) and the counts, so every stage of a
/// replica computes it without a message; seed and epoch are equal on all ranks.
///
///     terse::ExampleOrder order(count, seed, epoch, grid.replica(), grid.replicas());
///     for (index_t k = 0; k < order.batches(64); ++k) pipeline.train(order.batch(k, 64));
///
/// Cost: 8 bytes and 64 random bits per example. Throws usage_error for a negative count, an epoch of 2^40 or more, and a
/// replica outside [0, replicas). `batches` and `batch` throw it for a size below 1, and for fewer examples than replicas,
/// since a replica would have none.
class ExampleOrder {
 public:
  ExampleOrder(index_t count, std::uint64_t seed, std::uint64_t epoch, int replica = 0, int replicas = 1);

  /// Returns all ids of the replica, in the epoch's order.
  std::span<const std::uint64_t> order() const { return ids_; }
  index_t size() const { return static_cast<index_t>(ids_.size()); }

  /// Returns the number of batches in an epoch, equal on all replicas, which step together.
  index_t batches(index_t size) const;
  /// Returns batch k: `size` ids, or the remaining ones in the last batch. Some replicas may have one example more than
  /// others. If the others fill their last batch, the last batch of these replicas has `size` + 1 ids: no example is
  /// left out, and no batch is empty. Valid as long as this object lives. Throws usage_error if there is no batch k.
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
