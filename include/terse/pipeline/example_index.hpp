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

namespace terse {

/// Which example is kept in which slot: ids of 64 bits to [0, capacity). Memory for all is taken at construction; open
/// addressing, half full at most, so that a look takes constant time. Slots follow from the sequence of calls alone:
/// the one that was given back last is taken first, then the lowest that was never taken.
class ExampleIndex {
 public:
  static constexpr index_t none = -1;
  /// For those that get to know an index by its type alone.
  static constexpr std::uint64_t nobody = no_example;

  explicit ExampleIndex(index_t capacity);

  index_t capacity() const { return static_cast<index_t>(ids_.size()); }
  /// How many are kept.
  index_t size() const { return used_ - static_cast<index_t>(free_.size()); }
  /// One past the highest slot that was ever taken.
  index_t end() const { return used_; }
  /// The slot of an example, or `none`.
  index_t find(std::uint64_t id) const {
    const std::uint32_t slot = places_[place_of(id)];
    return slot == empty ? none : static_cast<index_t>(slot);
  }
  /// Whose slot it is, or `nobody`.
  std::uint64_t id(index_t slot) const { return ids_[static_cast<std::size_t>(slot)]; }
  /// Whose the slots are up to `end()`.
  std::span<const std::uint64_t> ids() const { return {ids_.data(), static_cast<std::size_t>(used_)}; }

  /// Takes a slot for an example that has none; there must be room.
  index_t insert(std::uint64_t id);
  /// Gives the slot of an example back, if it has one.
  void erase(std::uint64_t id);
  void clear();
  /// Becomes the index of `ids`, slot by slot; no_example where a slot is nobody's. Throws usage_error if they are more
  /// than there are slots, or one is there twice; then nothing has changed.
  void assign(const std::vector<std::uint64_t>& ids);

 private:
  static constexpr std::uint32_t empty = std::numeric_limits<std::uint32_t>::max();

  static std::size_t checked(index_t capacity);
  std::size_t mask() const { return places_.size() - 1; }
  std::size_t next(std::size_t place) const { return (place + 1) & mask(); }
  std::size_t home_of(std::uint64_t id) const { return static_cast<std::size_t>(mix_hash(0, id)) & mask(); }
  /// Where the example is, or where it would be.
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
  std::vector<std::uint32_t> free_;    // slots given back
  index_t used_ = 0;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/pipeline/example_index.ipp"
#endif
