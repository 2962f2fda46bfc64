// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace train {

/// How many characters must be put in, left out, replaced or swapped with their neighbour to make one word of the other.
inline std::size_t edits(std::string_view from, std::string_view to) {
  std::vector<std::size_t> before(to.size() + 1), above(to.size() + 1), row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(above, row);
  }
  return above[to.size()];
}

/// "; did you mean adam?" of the nearest of these names; "" where none is near.
template <class Names>
std::string did_you_mean(std::string_view given, const Names& names) {
  std::string_view nearest;
  std::size_t most = std::max<std::size_t>(1, given.size() / 3);
  for (const std::string_view name : names)
    if (const std::size_t count = edits(given, name); nearest.empty() ? count <= most : count < most) {
      most = count;
      nearest = name;
    }
  return nearest.empty() ? "" : "; did you mean " + std::string(nearest) + "?";
}

}  // namespace train
