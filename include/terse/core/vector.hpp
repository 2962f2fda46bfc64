// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terse {

/// Which of the vectors that travel together, as a tag.
template <int K>
struct Vector {
  static constexpr int number = K;
};

}  // namespace terse
