// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
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
inline std::vector<Place> places_below(const std::filesystem::path& root) {
  std::vector<Place> places;
  std::error_code fault;
  for (std::filesystem::directory_iterator entry(root, fault), end; !fault && entry != end;
       entry.increment(fault)) {
    const std::string name = entry->path().filename().string();
    Place place;
    if (name.rfind("step-", 0) != 0) continue;
    const char* const last = name.data() + name.size();
    auto read = std::from_chars(name.data() + 5, last, place.step);
    if (read.ec == std::errc{} && read.ptr != last && *read.ptr == '.')
      read = std::from_chars(read.ptr + 1, last, place.attempt);
    // Names that are not ours to the letter are somebody's copies.
    if (read.ec == std::errc{} && read.ptr == last && place.below(root) == root / name)
      places.push_back(place);
  }
  if (fault && fault != std::errc::no_such_file_or_directory)
    fail(root, "its checkpoints cannot be listed: " + fault.message());
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace detail

/// Checkpoints below `root`, the newest first: what `Folder::load` tries. Not verified. Throws checkpoint_error where `root` can't be read.
inline std::vector<std::filesystem::path> folders_below(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> folders;
  for (const detail::Place& place : detail::places_below(root)) folders.push_back(place.below(root));
  std::reverse(folders.begin(), folders.end());
  return folders;
}

}  // namespace terse::checkpoint
