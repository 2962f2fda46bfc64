// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace terse {

/// The ranks that go on after a loss, from the view of one of them.
template <class T>
struct Regrouped {
  T transport;              ///< among the ranks that are left, which have new numbers from 0
  std::vector<int> before;  ///< by new rank: its number in the group before
};

}  // namespace terse
