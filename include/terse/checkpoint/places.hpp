// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "terse/checkpoint/file_io.hpp"

// The paths of a run's checkpoints: step-00000500 below its folder, and step-00000500.2 if that step was saved again.

namespace terse::checkpoint {

namespace detail {

/// The place of a step's checkpoint. A step that is saved again gets a new place, and the one before it stays whole.
struct Place {
  std::uint64_t step = 0, attempt = 1;
  auto operator<=>(const Place&) const = default;

  std::filesystem::path below(const std::filesystem::path& root) const {
    std::string number = std::to_string(step);
    if (number.size() < 8) number.insert(0, 8 - number.size(), '0');
    return root / ("step-" + number + (attempt > 1 ? "." + std::to_string(attempt) : ""));
  }
};

/// Returns the checkpoints below `root`, by their names only, in ascending order. Throws checkpoint_error.
std::vector<Place> places_below(const std::filesystem::path& root);

}  // namespace detail

/// Returns the checkpoints below `root`, newest first, in the order that `Folder::load` tries. Not verified. Throws
/// checkpoint_error if `root` can't be read.
std::vector<std::filesystem::path> folders_below(const std::filesystem::path& root);

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/places.ipp"
#endif
