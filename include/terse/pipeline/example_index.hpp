// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
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

  explicit ExampleIndex(index_t capacity)
      : ids_(checked(capacity), no_example),
        places_(std::bit_ceil(2 * static_cast<std::size_t>(capacity) + 1), empty) {
    free_.reserve(ids_.size());
  }

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
  index_t insert(std::uint64_t id) {
    index_t slot = used_;
    if (free_.empty()) {
      ++used_;
    } else {
      slot = static_cast<index_t>(free_.back());
      free_.pop_back();
    }
    put(id, slot);
    return slot;
  }
  /// Gives the slot of an example back, if it has one.
  void erase(std::uint64_t id) {
    const std::size_t found = place_of(id);
    if (places_[found] == empty) return;
    free_.push_back(places_[found]);
    ids_[places_[found]] = no_example;
    // Whoever was pushed on by this one moves up.
    std::size_t hole = found;
    for (std::size_t place = next(found); places_[place] != empty; place = next(place)) {
      const std::size_t home = home_of(ids_[places_[place]]);
      if (((place - home) & mask()) < ((place - hole) & mask())) continue;
      places_[hole] = places_[place];
      hole = place;
    }
    places_[hole] = empty;
  }
  void clear() {
    ids_.assign(ids_.size(), no_example);
    places_.assign(places_.size(), empty);
    free_.clear();
    used_ = 0;
  }
  /// Becomes the index of `ids`, slot by slot; no_example where a slot is nobody's. Throws usage_error if they are more
  /// than there are slots, or one is there twice; then nothing has changed.
  void assign(const std::vector<std::uint64_t>& ids) {
    ExampleIndex other(capacity());
    if (ids.size() > ids_.size())
      throw usage_error(std::to_string(ids.size()) + " examples don't fit into a memory of " +
                        std::to_string(capacity()));
    for (const std::uint64_t id : ids) {
      const index_t slot = other.used_++;
      if (id == no_example) {
        other.free_.push_back(static_cast<std::uint32_t>(slot));
        continue;
      }
      if (other.find(id) != none) throw usage_error("example " + std::to_string(id) + " is there twice");
      other.put(id, slot);
    }
    *this = std::move(other);
  }

 private:
  static constexpr std::uint32_t empty = std::numeric_limits<std::uint32_t>::max();

  static std::size_t checked(index_t capacity) {
    if (capacity < 0 || capacity >= (index_t{1} << 31))
      throw usage_error("a memory's capacity must be in [0, 2^31), not " + std::to_string(capacity));
    return static_cast<std::size_t>(capacity);
  }
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
