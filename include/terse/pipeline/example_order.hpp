// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
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
  ExampleOrder(index_t count, std::uint64_t seed, std::uint64_t epoch, int replica = 0, int replicas = 1)
      : count_(count), replicas_(replicas) {
    if (count < 0)
      throw usage_error("the number of examples can't be negative, as " + std::to_string(count) + " is");
    if (replica < 0 || replica >= replicas)
      throw usage_error("there is no replica " + std::to_string(replica) + " among " +
                        std::to_string(replicas));
    if (epoch >> 40 != 0) throw usage_error("epochs must be below 2^40, not " + std::to_string(epoch));
    for (index_t id = replica; id < count; id += replicas) ids_.push_back(static_cast<std::uint64_t>(id));
    const Draw draw = Draw::local(seed, replica, epoch, Purpose::shuffle);
    for (std::size_t left = ids_.size(); left > 1; --left)
      std::swap(ids_[left - 1], ids_[static_cast<std::size_t>(draw.below(left, left))]);
  }

  /// All ids of the replica, in the epoch's order.
  std::span<const std::uint64_t> order() const { return ids_; }
  index_t size() const { return static_cast<index_t>(ids_.size()); }

  /// Batches of an epoch, the same number on all replicas, which step together.
  index_t batches(index_t size) const {
    if (size < 1) throw usage_error("a batch has 1 example at least, not " + std::to_string(size));
    if (count_ < replicas_)
      throw usage_error("there are " + std::to_string(count_) + " examples for " + std::to_string(replicas_) +
                        " replicas; each needs one at least");
    return (count_ / replicas_ - 1) / size + 1;
  }
  /// Batch k: `size` ids, and in the last one what is left. Where replicas have one example more than others, and those
  /// fill their last batch, that is one more than `size`: no example is left out, and no batch is empty. Valid as long as
  /// this object is. Throws usage_error where there is no such batch.
  std::span<const std::uint64_t> batch(index_t k, index_t size) const {
    const index_t all = batches(size);
    if (k < 0 || k >= all)
      throw usage_error("there is no batch " + std::to_string(k) + " among " + std::to_string(all));
    return k + 1 < all ? order().subspan(static_cast<std::size_t>(k * size), static_cast<std::size_t>(size))
                       : order().subspan(static_cast<std::size_t>(k * size));
  }

 private:
  index_t count_;
  int replicas_;
  std::vector<std::uint64_t> ids_;
};

}  // namespace terse
