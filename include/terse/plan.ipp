// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/plan.hpp"

namespace terse {

namespace detail {

TERSE_CORE std::vector<Range> slices_of(const Range& range, index_t bytes, bool whole_segments) {
  constexpr index_t width = sizeof(float);
  const index_t slice = std::max(bytes / width, alignment);
  if (whole_segments && bytes > 0 && !range.pieces().empty()) {
    std::vector<Range> slices;
    std::vector<Piece> pieces;
    index_t held = 0;
    for (auto piece = range.pieces().rbegin(); piece != range.pieces().rend(); ++piece) {
      if (held > 0 && held + piece->count > slice) {
        slices.emplace_back(std::vector<Piece>(pieces.rbegin(), pieces.rend()));
        pieces.clear();
        held = 0;
      }
      pieces.push_back(*piece);
      held += piece->count;
    }
    slices.emplace_back(std::vector<Piece>(pieces.rbegin(), pieces.rend()));
    return slices;
  }
  const index_t count = bytes <= 0 ? 1 : std::max(index_t{1}, (range.elements() + slice - 1) / slice);
  std::vector<Range> slices = range.cut(static_cast<int>(count));
  std::reverse(slices.begin(), slices.end());
  return slices;
}

TERSE_CORE std::vector<Range> shares_of(const Range& range, int parts, CutBy how) {
  if (how == CutBy::kind) return {};
  return how == CutBy::element ? range.cut(parts) : range.divide(parts);
}

}  // namespace detail

TERSE_CORE void Plan::cut(int parts, const std::vector<Range>& shares) {
  std::vector<Range> compressed, dense;
  if (shares.empty()) {
    compressed = whole.compressed.cut(parts);
    dense = whole.dense.cut(parts);
  }
  for (const Range& share : shares) {
    std::vector<Piece> taken, left;
    for (const Piece& piece : share.pieces())
      (whole.compressed.pieces_of(piece.segment) > 0 ? taken : left).push_back(piece);
    compressed.emplace_back(std::move(taken));
    dense.emplace_back(std::move(left));
  }
  chunks = std::vector<Portion>(compressed.size());
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    Portion& chunk = chunks[c];
    chunk.compressed = std::move(compressed[c]);
    chunk.dense = std::move(dense[c]);
    if (chunk.compressed.pieces().empty()) continue;
    const index_t segment = chunk.compressed.pieces().front().segment;
    while (whole.compressed.pieces()[static_cast<std::size_t>(chunk.first_unit)].segment != segment)
      ++chunk.first_unit;
  }
}

}  // namespace terse
