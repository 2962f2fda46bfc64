// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/executor/host.hpp"
#include "terse/executor/statistic.hpp"

namespace terse::detail {

/// A message on the host that is evaluated only as far as the next tile requires, so that the tile is in cache.
template <class Masked, class Incoming, class F>
class TileMessage {
 public:
  /// Takes `bad` and `scratch` in the same way as `reduce`.
  TileMessage(Masked mask, Incoming incoming, const F& message, float* scratch, std::uint32_t* bad)
      : mask_(mask), incoming_(incoming), message_(message), scratch_(scratch), bad_(bad) {}

  /// Evaluates the message up to the arena index `end` in this piece. Calls must ascend, and the last call for each
  /// piece must reach its end.
  void evaluate(const Piece& piece, index_t end) {
    if (piece.offset != piece_.offset || piece_.count == 0) {
      if (piece_.count > 0) {
        incoming_.next_units(1);
        incoming_.next_piece(piece_.count);
      }
      piece_ = piece;
      done_ = 0;
    }
    if (end - piece.offset <= done_) return;
    // The reduction takes whole blocks.
    const index_t blocks = (end - piece.offset + reduction_block - 1) / reduction_block;
    const index_t until = std::min(blocks * reduction_block, piece.count);
    const auto totals = reduce_unit<MaxAbs>(piece, done_, until, mask_, incoming_, message_, scratch_);
    finish_unit<MaxAbs>(totals.data(), until - done_, bad_);
    done_ = until;
  }

 private:
  Masked mask_;
  Cursor<Incoming> incoming_;
  F message_;
  float* scratch_;
  std::uint32_t* bad_;
  Piece piece_{};
  index_t done_ = 0;  // evaluated elements of the piece
};

}  // namespace terse::detail
