// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace bert {

/// The sizes of a model; by default those of all-MiniLM-L6-v2.
struct Sizes {
  std::int64_t layers = 6, width = 384, heads = 12, inner = 1536;
  std::int64_t vocabulary = 30'522, positions = 512, types = 2;
  double epsilon = 1e-12;  ///< of the normalizations
};

}  // namespace bert
