// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "terse/checkpoint/file_io.hpp"

// Where a run's checkpoints are: step-00000500 below its folder, and step-00000500.2 where that step was saved again.

namespace terse::checkpoint {

namespace detail {

/// A step's checkpoint. A step that is saved again comes beside the one before it, which stays whole.
struct Place {
  std::uint64_t step = 0, attempt = 1;
  auto operator<=>(const Place&) const = default;

  std::filesystem::path below(const std::filesystem::path& root) const {
    std::string number = std::to_string(step);
    if (number.size() < 8) number.insert(0, 8 - number.size(), '0');
    return root / ("step-" + number + (attempt > 1 ? "." + std::to_string(attempt) : ""));
  }
};

/// Checkpoints below `root`, by their names alone, in ascending order. Throws checkpoint_error.
std::vector<Place> places_below(const std::filesystem::path& root);

}  // namespace detail

/// Checkpoints below `root`, the newest first: what `Folder::load` tries. Not verified. Throws checkpoint_error where `root` can't be read.
std::vector<std::filesystem::path> folders_below(const std::filesystem::path& root);

}  // namespace terse::checkpoint

#ifndef TERSE_SEPARATE
#include "terse/checkpoint/places.ipp"
#endif
