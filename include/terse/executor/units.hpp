// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "terse/core/ones.hpp"
#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"

// Walks of the host's verbs through the units of a range: one thread processes all of them, or each thread of a team
// a share.

namespace terse {

/// The mask of a walk over the host's memory.
using HostMask = Mask<memory::host>;

TERSE_NUMERICS_BEGIN

namespace detail {

inline index_t kept(const Piece&, index_t begin, index_t end, NoMask) { return end - begin; }
inline index_t kept(const Piece& piece, index_t begin, index_t end, HostMask mask) {
  if (mask.words == nullptr) return end - begin;
  index_t count = 0;
  for (index_t b = begin; b < end; b += lanes) {
    std::uint64_t word = mask.word(piece.offset + b);
    if (end - b < lanes) word &= (std::uint64_t{1} << (end - b)) - 1;
    count += ones_in(word);
  }
  return count;
}

inline index_t unit_size(const Piece& piece, Units units) {
  return units.size == 0 ? piece.count : units.size;
}

/// A thread's part of a range, which is all of it.
struct AllOfIt {};
/// A thread's part of a range: the elements [first, last), counted over its pieces, in blocks from the beginning of a
/// unit. A block belongs to the share of its first element.
struct ThreadShare {
  index_t first, last;
};

/// A unit of a range, the counts before it, and the part of it that a thread runs.
struct UnitPart {
  index_t unit, passed;  ///< units and elements of the range before this unit
  index_t begin, end;    ///< the unit's elements, within its piece
  index_t first, last;   ///< the elements that the thread runs
};

/// The place of a piece's codes in a packet, see code_bytes.
template <int Bits>
struct CodePlace {
  std::byte* wire;
  void next_units(index_t) {}
  void next_piece(index_t count) { wire += code_bytes<Bits>(count); }
};

/// Calls act(piece, part) for each unit that overlaps the thread's share. A unit of the whole range is processed
/// piece by piece. Advances `places` with the units.
template <class Act, class... Places>
TERSE_INLINE void for_each_unit(const Range& range, Units units, AllOfIt, index_t, Act act,
                                Places&... places) {
  index_t unit = 0, passed = 0;
  for (const Piece& piece : range.pieces()) {
    const index_t size = unit_size(piece, units);
    for (index_t begin = 0; begin < piece.count; begin += size) {
      const index_t end = std::min(begin + size, piece.count);
      act(piece, UnitPart{unit++, passed + begin, begin, end, begin, end});
      (places.next_units(1), ...);
    }
    (places.next_piece(piece.count), ...);
    passed += piece.count;
  }
}
/// Calls act(piece, part) for the units of a share, which may cut them every `block` elements; 0 means nowhere.
template <class Act, class... Places>
inline void for_each_unit(const Range& range, Units units, ThreadShare share, index_t block, Act act,
                          Places&... places) {
  index_t unit = 0, passed = 0;
  for (const Piece& piece : range.pieces()) {
    if (passed >= share.last) return;
    const index_t size = unit_size(piece, units);
    // Skips all units before the share.
    const index_t before =
        std::min(std::max<index_t>(share.first - passed, 0), piece.count) / std::max<index_t>(size, 1);
    unit += before;
    (places.next_units(before), ...);
    for (index_t begin = before * size; begin < piece.count; begin += size) {
      const index_t end = std::min(begin + size, piece.count);
      const index_t cut = block == 0 ? end - begin : block;
      const auto in_unit = [&](index_t element) {
        const index_t within = std::max<index_t>(element - passed - begin, 0);
        return std::min(begin + (within + cut - 1) / cut * cut, end);
      };
      const index_t first = in_unit(share.first), last = in_unit(share.last);
      if (first < last) act(piece, UnitPart{unit, passed + begin, begin, end, first, last});
      ++unit;
      (places.next_units(1), ...);
    }
    (places.next_piece(piece.count), ...);
    passed += piece.count;
  }
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
