// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/core/layout.hpp"
#include "terse/pipeline/micro_batch.hpp"

namespace terse::detail {

/// A map from examples to slots: ids of 64 bits to [0, capacity). All memory is allocated at construction. It uses open
/// addressing in a table at most half full, so that a look-up takes constant time. Slots depend only on the sequence of
/// calls: the slot that was freed last comes first, then the lowest slot that was never used.
class ExampleIndex {
 public:
  static constexpr index_t none = -1;
  /// The id `no_example`, for code that has only the type of an index.
  static constexpr std::uint64_t nobody = no_example;

  explicit ExampleIndex(index_t capacity);

  index_t capacity() const { return static_cast<index_t>(ids_.size()); }
  /// Returns the number of examples.
  index_t size() const { return used_ - static_cast<index_t>(free_.size()); }
  /// Returns the highest slot that was ever used, plus 1.
  index_t end() const { return used_; }
  /// Returns the slot of an example, or `none`.
  index_t find(std::uint64_t id) const {
    const std::uint32_t slot = places_[place_of(id)];
    return slot == empty ? none : static_cast<index_t>(slot);
  }
  /// Returns the id of the example in a slot, or `nobody`.
  std::uint64_t id(index_t slot) const { return ids_[static_cast<std::size_t>(slot)]; }
  /// Returns the ids of the examples in the slots up to `end()`.
  std::span<const std::uint64_t> ids() const { return {ids_.data(), static_cast<std::size_t>(used_)}; }

  /// Assigns a slot to an example that has none; the index must not be full.
  index_t insert(std::uint64_t id);
  /// Frees the slot of an example, if it has one.
  void erase(std::uint64_t id);
  void clear();
  /// Replaces the index by `ids`, slot by slot, with no_example for a free slot. Throws usage_error, with nothing changed,
  /// if there are more ids than slots, or an id occurs twice.
  void assign(const std::vector<std::uint64_t>& ids);

 private:
  static constexpr std::uint32_t empty = std::numeric_limits<std::uint32_t>::max();

  static std::size_t checked(index_t capacity);
  std::size_t mask() const { return places_.size() - 1; }
  std::size_t next(std::size_t place) const { return (place + 1) & mask(); }
  std::size_t home_of(std::uint64_t id) const { return static_cast<std::size_t>(mix_hash(0, id)) & mask(); }
  /// Returns the place of the example in the hash table, or the free place where it would be inserted.
  std::size_t place_of(std::uint64_t id) const {
    std::size_t place = home_of(id);
    while (places_[place] != empty && ids_[places_[place]] != id) place = next(place);
    return place;
  }
  void put(std::uint64_t id, index_t slot) {
    places_[place_of(id)] = static_cast<std::uint32_t>(slot);
    ids_[static_cast<std::size_t>(slot)] = id;
  }

  std::vector<std::uint64_t> ids_;     // by slot
  std::vector<std::uint32_t> places_;  // slots, by hash
  std::vector<std::uint32_t> free_;    // freed slots
  index_t used_ = 0;
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/pipeline/example_index.ipp"
#endif
