// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/hash.hpp"
#include "terse/graph/concept.hpp"
#include "terse/graph/connectivity.hpp"
#include "terse/graph/settings.hpp"

namespace terse::graph {

/// A custom directed graph: for each rank the ranks to which it sends, in any order. An Adjacency. It is usually
/// irregular, and only PushSum finds the mean over it: `PushSum{DirectedList{{{1, 2}, {2}, {0}}}}`. Errors: check()
/// throws usage_error unless there is one list for each rank, which contains other ranks of the graph without
/// repetition, and unless every rank reaches every other.
struct DirectedList {
  std::vector<std::vector<int>> receivers_of;  ///< one list for each rank

  static constexpr bool fixed = true, symmetric = false, regular = false;

  void check(int size) const;

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
  void check_list(int rank, int size) const;
};

}  // namespace terse::graph

#ifndef TERSE_SEPARATE
#include "terse/graph/directed_list.ipp"
#endif
