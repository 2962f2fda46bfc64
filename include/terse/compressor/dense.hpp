// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/compressor/concept.hpp"

namespace terse {

/// No compression: 4 bytes per element. All dense pieces of packets are sent this way, with any compressor.
struct Dense {
  static constexpr bool lossless = true;
  static constexpr bool unbiased = true;

  /// The decoder of dense pieces.
  struct Code {
    static constexpr int bits = 32;
    using Scale = float;  // unused
    TERSE_HD static float value(std::uint32_t code, float) { return std::bit_cast<float>(code); }
  };

  index_t wire_bytes(const Range& range) const {
    index_t bytes = 0;
    for (const Piece& piece : range.pieces()) bytes += code_bytes<Code::bits>(piece.count);
    return bytes;
  }
};

}  // namespace terse
