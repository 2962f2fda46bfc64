// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terse/core/separate.hpp"
#include "terse/graph/directed_list.hpp"

namespace terse::graph {

TERSE_CORE void DirectedList::check(int size) const {
  check_size(size);
  if (receivers_of.size() != static_cast<std::size_t>(size))
    throw usage_error("this directed graph lists " + std::to_string(receivers_of.size()) +
                      " ranks, but there are " + std::to_string(size));
  for (int rank = 0; rank < size; ++rank) check_list(rank, size);
  if (const int rank = unreached(*this, size, 0); rank >= 0)
    throw usage_error("this directed graph never mixes: no path leads from rank 0 to rank " +
                      std::to_string(rank));
  if (const int rank = unreached(*this, size, 0, true); rank >= 0)
    throw usage_error("this directed graph never mixes: no path leads from rank " + std::to_string(rank) +
                      " to rank 0");
}

TERSE_CORE void DirectedList::check_list(int rank, int size) const {
  const std::vector<int>& list = receivers_of[static_cast<std::size_t>(rank)];
  for (const int peer : list) {
    const std::string edge = "rank " + std::to_string(rank) + " sends to rank " + std::to_string(peer);
    if (peer < 0 || peer >= size)
      throw usage_error(edge + " in this directed graph, but there are " + std::to_string(size) + " ranks");
    if (peer == rank) throw usage_error(edge + " in this directed graph: a rank keeps its own share unasked");
    if (std::count(list.begin(), list.end(), peer) > 1)
      throw usage_error(edge + " more than once in this directed graph");
  }
}

}  // namespace terse::graph
