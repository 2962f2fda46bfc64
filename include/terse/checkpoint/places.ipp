// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <system_error>

#include "terse/checkpoint/places.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE std::vector<Place> places_below(const std::filesystem::path& root) {
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
    // If a name isn't spelled exactly like this, it is somebody's copy.
    if (read.ec == std::errc{} && read.ptr == last && place.below(root) == root / name)
      places.push_back(place);
  }
  if (fault && fault != std::errc::no_such_file_or_directory)
    fail(root, "its checkpoints cannot be listed: " + fault.message());
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace terse::checkpoint::detail

namespace terse::checkpoint {

TERSE_CORE std::vector<std::filesystem::path> folders_below(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> folders;
  for (const detail::Place& place : detail::places_below(root)) folders.push_back(place.below(root));
  std::reverse(folders.begin(), folders.end());
  return folders;
}

}  // namespace terse::checkpoint
