// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>

#include "terse/checkpoint/dealing.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint::detail {

TERSE_CORE Extents extents_in(const std::string& text) {
  Extents extents;
  std::istringstream lines(text);
  std::string name;
  for (index_t begin = 0, end = 0; lines >> begin >> end >> std::ws && std::getline(lines, name);)
    extents[name].take(begin, end);
  return extents;
}

TERSE_CORE Extents joined(const std::vector<Extents>& of_ranks) {
  Extents extents;
  for (const Extents& of_rank : of_ranks)
    for (const auto& [name, extent] : of_rank) extents[name].take(extent.begin, extent.end);
  return extents;
}

TERSE_CORE std::vector<Heirs> heirs_of(const std::vector<Extents>& of_ranks, std::size_t mine,
                                       const std::string& name, index_t first, index_t last) {
  std::vector<Heirs> heirs(static_cast<std::size_t>(last - first));
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto found = of_ranks[rank].find(name);
    if (found == of_ranks[rank].end()) continue;
    const Extent& extent = found->second;
    for (index_t i = std::max(first, extent.begin); i < std::min(last, extent.end); ++i) {
      Heirs& of_element = heirs[static_cast<std::size_t>(i - first)];
      of_element.place += rank < mine ? 1 : 0;
      ++of_element.count;
    }
  }
  return heirs;
}

}  // namespace terse::checkpoint::detail
