// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terse {

/// A tag for one of several vectors that are sent together.
template <int K>
struct Vector {
  static constexpr int number = K;
};

}  // namespace terse
