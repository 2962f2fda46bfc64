// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "terse/codec.hpp"
#include "terse/core/half.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Converts a decoded value to an activation of type A. Clamps to A's range, so that finite values stay finite.
template <Number A>
TERSE_HD A delivered(float x) {
  if constexpr (std::same_as<A, float>)
    return x;
  else
    return narrowed<A>(between(x, -A::largest, A::largest));
}

/// Contiguous rows without padding, addressed by arena index: in the arena of a micro-batch each row starts at a multiple
/// of 64. `piece.segment` is the row's number.
template <class A>
struct Rows {
  A* data = nullptr;
  index_t padding = 0;  // after each row of the arena
  index_t shift = 0;

  TERSE_HD void enter(const Piece& piece) { shift = piece.segment * padding; }
  TERSE_HD A& operator[](index_t i) const { return data[i - shift]; }
};

/// A message that consists of a stage's rows.
template <Number A>
struct RowMessage {
  Rows<const A> rows;
  TERSE_HD void enter(const Piece& piece) { rows.enter(piece); }
  TERSE_HD float operator()(const Piece&, index_t i) const { return widened(rows[i]); }
};

/// Writes decoded values to rows, without a copy.
template <Number A>
struct TakeRows {
  Rows<A> rows;
  TERSE_HD void enter(const Piece& piece) { rows.enter(piece); }
  TERSE_HD void operator()(const Piece&, index_t i, bool, float sum) const { rows[i] = delivered<A>(sum); }
};

TERSE_NUMERICS_END

/// Some rows of a micro-batch in a packet: a codec, and the place of its section. Allocates only at construction.
template <Compressor C, ErrorFeedback F, Executor E>
class RowSection {
 public:
  /// Allocates for up to `rows` rows of `elements` elements.
  RowSection(E executor, const C& compressor, const F& feedback, index_t rows, index_t elements)
      : executor_(executor),
        elements_(elements),
        codec_(executor, compressor, feedback, all(rows, elements)),
        inbox_(1) {
    pieces_.reserve(static_cast<std::size_t>(rows));
    for (index_t row = 0; row < rows; ++row) add(row, elements_);
    largest_ = lay_out(0);
    clear();
  }

  void clear() { pieces_.clear(); }
  /// Adds the first `count` elements of row `row`.
  void add(index_t row, index_t count) {
    if (count > 0) pieces_.push_back({row, row * aligned(elements_), count});
  }
  bool empty() const { return pieces_.empty(); }
  /// Places the section after `at` bytes of packet; returns its end.
  index_t lay_out(index_t at) {
    range_of(portion_).assign(pieces_.data(), pieces_.size());
    portion_.section_at = at;
    portion_.dense_at = at + codec_.compressor().wire_bytes(portion_.compressed);
    portion_.bytes = portion_.note_at = portion_.dense_at + Dense{}.wire_bytes(portion_.dense);
    return portion_.bytes;
  }
  /// Returns the bytes of a section of all rows.
  index_t largest() const { return largest_; }

  template <class M>
  void encode(const M& message, const EncodeContext& context, std::byte* packet) {
    if (empty()) return;
    const Message both{message, message};
    codec_.measure(portion_, {}, EmptyInbox{}, both);
    codec_.encode(portion_, {}, EmptyInbox{}, both, context, false, packet);
  }
  /// Makes `decode` look for values that are not finite in a peer's packets, see Envelope.
  void watch(std::uint64_t* damage, std::uint32_t origin) {
    inbox_.watch(damage);
    origin_ = origin;
  }
  /// Calls f(piece, i, keep, value) with the decoded value of each element.
  template <class G>
  void decode(const std::byte* packet, const StepDraw& shared, const G& f) {
    if (empty()) return;
    inbox_.clear();
    inbox_.add(codec_.compressor(), portion_, packet, shared, 1, origin_);
    if constexpr (C::lossless)
      for_each(executor_, portion_.dense, NoMask{}, inbox_.dense(), f);
    else
      for_each(executor_, portion_.compressed, NoMask{}, codec_.arrived(portion_.compressed, inbox_), f);
  }

  Codec<C, F, E>& codec() { return codec_; }
  const Portion& portion() const { return portion_; }
  /// Returns the rows that were added.
  const Range& range() { return range_of(portion_); }

 private:
  static Range& range_of(Portion& portion) { return C::lossless ? portion.dense : portion.compressed; }
  static Portion all(index_t rows, index_t elements) {
    std::vector<Piece> pieces;
    for (index_t row = 0; row < rows; ++row) pieces.push_back({row, row * aligned(elements), elements});
    Portion portion;
    range_of(portion) = Range(std::move(pieces));
    return portion;
  }

  E executor_;
  index_t elements_;
  Codec<C, F, E> codec_;
  Inbox<C> inbox_;
  Portion portion_;
  std::vector<Piece> pieces_;
  index_t largest_ = 0;
  std::uint32_t origin_ = 0;
};

}  // namespace terse::detail
