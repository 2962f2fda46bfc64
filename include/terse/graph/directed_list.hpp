// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/connectivity.hpp"
#include "terse/graph/settings.hpp"

namespace terse::graph {

/// A directed graph of the user's own: for each rank the ranks it sends to, in any order. An Adjacency; as
/// a rule it is irregular, and only PushSum finds the mean over it: `PushSum{DirectedList{{{1, 2}, {2},
/// {0}}}}`.
/// Errors: check() throws usage_error unless there is one list for each rank, each of other ranks of the
/// graph and without repetition, and every rank reaches every other.
struct DirectedList {
  std::vector<std::vector<int>> receivers_of;  ///< one list for each rank

  static constexpr bool fixed = true, symmetric = false, regular = false;

  void check(int size) const {
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

  bool sends(int from, int to, int, std::uint64_t) const {
    const std::vector<int>& list = receivers_of[static_cast<std::size_t>(from)];
    return std::find(list.begin(), list.end(), to) != list.end();
  }

  template <class Visit>
  void settings(Visit&& visit) const {
    std::uint64_t hash = 0;
    for (const std::vector<int>& list : receivers_of) {
      hash = mix_hash(hash, list.size());
      for (const int peer : list) hash = mix_hash(hash, static_cast<std::uint64_t>(peer));
    }
    visit_bits("edges", hash, visit);
  }

 private:
  void check_list(int rank, int size) const {
    const std::vector<int>& list = receivers_of[static_cast<std::size_t>(rank)];
    for (const int peer : list) {
      const std::string edge = "rank " + std::to_string(rank) + " sends to rank " + std::to_string(peer);
      if (peer < 0 || peer >= size)
        throw usage_error(edge + " in this directed graph, but there are " + std::to_string(size) + " ranks");
      if (peer == rank)
        throw usage_error(edge + " in this directed graph: a rank keeps its own share unasked");
      if (std::count(list.begin(), list.end(), peer) > 1)
        throw usage_error(edge + " more than once in this directed graph");
    }
  }
};

}  // namespace terse::graph
