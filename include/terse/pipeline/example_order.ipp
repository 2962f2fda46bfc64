// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "terse/core/separate.hpp"
#include "terse/pipeline/example_order.hpp"

namespace terse {

TERSE_CORE ExampleOrder::ExampleOrder(index_t count, std::uint64_t seed, std::uint64_t epoch, int replica,
                                      int replicas)
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

TERSE_CORE index_t ExampleOrder::batches(index_t size) const {
  if (size < 1) throw usage_error("a batch has 1 example at least, not " + std::to_string(size));
  if (count_ < replicas_)
    throw usage_error("there are " + std::to_string(count_) + " examples for " + std::to_string(replicas_) +
                      " replicas; each needs one at least");
  return (count_ / replicas_ - 1) / size + 1;
}

TERSE_CORE std::span<const std::uint64_t> ExampleOrder::batch(index_t k, index_t size) const {
  const index_t all = batches(size);
  if (k < 0 || k >= all)
    throw usage_error("there is no batch " + std::to_string(k) + " among " + std::to_string(all));
  return k + 1 < all ? order().subspan(static_cast<std::size_t>(k * size), static_cast<std::size_t>(size))
                     : order().subspan(static_cast<std::size_t>(k * size));
}

}  // namespace terse
