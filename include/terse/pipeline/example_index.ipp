// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <string>

#include "terse/core/separate.hpp"
#include "terse/pipeline/example_index.hpp"

namespace terse::detail {

TERSE_CORE ExampleIndex::ExampleIndex(index_t capacity)
    : ids_(checked(capacity), no_example),
      places_(std::bit_ceil(2 * static_cast<std::size_t>(capacity) + 1), empty) {
  free_.reserve(ids_.size());
}

TERSE_CORE index_t ExampleIndex::insert(std::uint64_t id) {
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

TERSE_CORE void ExampleIndex::erase(std::uint64_t id) {
  const std::size_t found = place_of(id);
  if (places_[found] == empty) return;
  free_.push_back(places_[found]);
  ids_[places_[found]] = no_example;
  // Moves entries that were displaced by this one back towards their home places.
  std::size_t hole = found;
  for (std::size_t place = next(found); places_[place] != empty; place = next(place)) {
    const std::size_t home = home_of(ids_[places_[place]]);
    if (((place - home) & mask()) < ((place - hole) & mask())) continue;
    places_[hole] = places_[place];
    hole = place;
  }
  places_[hole] = empty;
}

TERSE_CORE void ExampleIndex::clear() {
  ids_.assign(ids_.size(), no_example);
  places_.assign(places_.size(), empty);
  free_.clear();
  used_ = 0;
}

TERSE_CORE void ExampleIndex::assign(const std::vector<std::uint64_t>& ids) {
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

TERSE_CORE std::size_t ExampleIndex::checked(index_t capacity) {
  if (capacity < 0 || capacity >= (index_t{1} << 31))
    throw usage_error("a memory's capacity must be in [0, 2^31), not " + std::to_string(capacity));
  return static_cast<std::size_t>(capacity);
}

}  // namespace terse::detail
