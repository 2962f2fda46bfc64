// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace terse {

/// The ranks that go on after a loss, or with others that have joined, from the view of one of them.
template <class T>
struct Regrouped {
  T transport;              ///< among these ranks, which have new numbers from 0
  std::vector<int> before;  ///< by new rank: its number in the group before; -1 for one that has joined
};

}  // namespace terse
