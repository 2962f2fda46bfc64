// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "terse/executor/concept.hpp"

// Functors that Hierarchical passes to the rounds of its two levels.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// A functor for compressed segments and one for the others, combined.
template <class Compressed, class Exact>
struct ByKind {
  Compressed compressed;
  Exact dense;
  const std::uint8_t* is_compressed;  // by segment
  bool now = false;

  TERSE_HD void enter(const Piece& piece) {
    now = is_compressed[piece.segment] != 0;
    if (now)
      terse::enter(compressed, piece);
    else
      terse::enter(dense, piece);
  }
  TERSE_HD float operator()(const Piece& piece, index_t i) const {
    return now ? compressed(piece, i) : dense(piece, i);
  }
};
/// A consumer for compressed segments and one for the others, combined.
template <class Compressed, class Exact>
struct ConsumeByKind {
  Compressed compressed;
  Exact dense;
  const std::uint8_t* is_compressed;
  bool dense_only;
  bool now = false;

  TERSE_HD void enter(const Piece& piece) {
    now = is_compressed[piece.segment] != 0;
    if (now)
      terse::enter(compressed, piece);
    else
      terse::enter(dense, piece);
  }
  TERSE_HD void operator()(const Piece& piece, index_t i, float mean) const {
    if (!now)
      dense(piece, i, mean);
    else if (!dense_only)
      compressed(piece, i, mean);
  }
};

/// Passes the decoded values of the node's message to a message functor, by its `sent`.
template <class F, class Mask>
struct TellSent {
  F message;
  Mask mask;
  TERSE_HD void enter(const Piece& piece) { terse::enter(message, piece); }
  TERSE_HD void operator()(const Piece&, index_t i, float decoded) const {
    message.sent(i, (mask.word(i) >> (i % alignment) & 1U) != 0, decoded);
  }
};
struct IgnoreMean {
  TERSE_HD void operator()(const Piece&, index_t, float) const {}
};
struct SayNothing {
  TERSE_HD float operator()(const Piece&, index_t) const { return 0; }
};

/// A node's mean, which its owner sends to the other nodes.
struct SayShare {
  const float* share;
  using StreamsOf = SayShare;
  TERSE_HD auto streams() { return reads(share); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return share[i]; }
};
/// A node's mean as a message; the decoded values replace it and are marked.
struct SayShareAndMark {
  float* share;
  std::uint8_t* marks;
  using StreamsOf = SayShareAndMark;
  TERSE_HD auto streams() { return reads(share); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return share[i]; }
  TERSE_HD void sent(index_t i, bool, float decoded) const {
    share[i] = decoded;
    marks[i] = 1;
  }
};
struct SayMarked {
  const float* share;
  const std::uint8_t* marks;
  TERSE_HD float operator()(const Piece&, index_t i) const { return keep_if(marks[i] != 0, share[i]); }
};

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
