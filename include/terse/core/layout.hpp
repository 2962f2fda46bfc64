// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/utf8.hpp"

// This header uses only C++17, so that a translation unit whose framework requires C++17 can describe its
// parameters.

namespace terse {

/// A count or an offset of elements.
using index_t = std::int64_t;

/// The alignment of segments, chunks and pieces, in elements: one word of mask or sign bits.
inline constexpr index_t alignment = 64;

/// Rounds up to a multiple of `alignment`.
constexpr index_t aligned(index_t count) { return (count + alignment - 1) / alignment * alignment; }

/// A named tensor inside the flat arena of parameters.
struct Segment {
  std::string name;               ///< name in errors and checkpoints
  std::vector<index_t> shape;     ///< the tensor's dimensions; empty for a scalar
  float learning_rate_scale = 1;  ///< factor of the recipe's learning rate in this segment
  float weight_decay = 1;         ///< factor of the recipe's weight decay in this segment; 0 switches it off
  bool compress = true;           ///< false: sent dense, with a variance that is still updated
  int group = 0;                  ///< parameter group; group 0 has the recipe's own hyper-parameters
  bool hidden =
      false;  ///< a matrix between input and output, for methods that treat such matrices differently: see ForHiddenMatrices
  index_t offset = 0;  ///< first element in the arena; set by the layout
  index_t count = 0;   ///< product of `shape`; set by the layout
};

/// A run of elements of one segment. Verbs pass it to functors together with the arena index.
struct Piece {
  index_t segment = 0;  ///< number of the segment in the layout
  index_t offset = 0;   ///< first element in the arena, a multiple of `alignment`
  index_t count = 0;    ///< elements, without padding
};

/// A list of pieces in the order of the arena. Padding belongs to no piece, so no functor ever sees it.
class Range {
 public:
  Range() = default;
  /// Throws usage_error for pieces that overlap, run backwards or start at unaligned offsets.
  explicit Range(std::vector<Piece> pieces) : pieces_(std::move(pieces)) { count(); }

  /// Replaces the pieces by this one; allocates at the first call only.
  void assign(const Piece& piece) {
    pieces_.assign(1, piece);
    columns_.clear();
    elements_ = piece.count;
  }
  /// Replaces the pieces, with the constructor's checks; allocates only if there are more than in all previous
  /// calls.
  void assign(const Piece* pieces, std::size_t count_) {
    pieces_.assign(pieces, pieces + count_);
    columns_.clear();
    count();
  }

  const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  /// Returns the number of elements in all pieces.
  index_t elements() const noexcept { return elements_; }
  /// Returns the columns of piece `p` as a matrix. Returns 0 if it is a vector or a part of a segment, or if the range
  /// was made from pieces only, see Layout::range_of.
  index_t columns(std::size_t p) const { return p < columns_.size() ? columns_[p] : 0; }
  /// Returns the number of pieces of this segment.
  std::size_t pieces_of(index_t segment) const;
  /// Returns the first arena index, 0 for an empty range.
  index_t begin_offset() const noexcept { return pieces_.empty() ? 0 : pieces_.front().offset; }
  /// Returns one past the last arena index, rounded up to the alignment.
  index_t end_offset() const noexcept {
    return pieces_.empty() ? 0 : aligned(pieces_.back().offset + pieces_.back().count);
  }

  /// Cuts the range into `parts` ranges of equal size. Part r ends at the first (r + 1) / parts of the elements,
  /// rounded up to the alignment within its piece. Parts differ by less than `2 * alignment` elements for each piece
  /// that they contain; if the range is small, some parts are empty. All ranks get the same cuts.
  TERSE_COLD std::vector<Range> cut(int parts) const;
  /// Divides the range into `parts` ranges of whole pieces: range r has those whose middle lies in the r-th of `parts` equal
  /// parts of the elements, and may be empty. All ranks get the same ranges.
  TERSE_COLD std::vector<Range> divide(index_t parts) const;

 private:
  void count();

  friend class Layout;
  std::vector<Piece> pieces_;
  std::vector<index_t> columns_;  // columns of the first pieces; unknown for the others
  index_t elements_ = 0;
};

/// Named segments over one flat arena of elements, each starting at a multiple of `alignment`.
///
///     terse::Layout layout;
///     layout.add({"hidden.weight", {256, 784}});
///     layout.add({"hidden.bias", {256}, /*learning_rate_scale=*/1, /*weight_decay=*/0});
class Layout {
 public:
  /// Appends a segment and sets its offset and count. Throws usage_error for a negative dimension or group, a product
  /// that overflows, and a hidden segment of less than two dimensions. It is also thrown for a learning rate scale or
  /// weight decay that is negative or not finite, and for a name that is taken or isn't UTF-8, which checkpoints
  /// require.
  TERSE_COLD Layout& add(Segment segment);

  /// Changes a segment's scales. Throws usage_error for a name that no segment has, and for scales that `add` refuses.
  void rescale(std::string_view name, float learning_rate_scale, float weight_decay);
  /// Returns the number of changes by `rescale`.
  std::uint64_t revision() const noexcept { return revision_; }

  /// Returns a layout of one segment, which has `count` elements and is named "parameters".
  static Layout flat(index_t count);

  const std::vector<Segment>& segments() const noexcept { return segments_; }
  /// Returns the groups of the segments, and 0, in ascending order.
  TERSE_COLD std::vector<int> groups() const;
  /// Returns the number of elements in the arena, padding included: the required size of parameter and gradient views.
  index_t size() const noexcept { return size_; }

  /// Returns all segments, one piece each; empty segments have none.
  Range range() const { return pieces_of(0, segments_.size()); }

  /// Returns ranges of consecutive whole segments, each of at least `elements` elements except the last.
  TERSE_COLD std::vector<Range> buckets(index_t elements) const;

  /// Returns the pieces of `range` whose segment has `compress == wanted`.
  TERSE_COLD Range filter(const Range& range, bool wanted) const;

  /// Returns these pieces as a range that knows which of them are whole matrices: segments of two or more dimensions,
  /// with more than one row and column. Rows are the first dimension, columns the product of the others.
  TERSE_COLD Range range_of(std::vector<Piece> pieces) const;

 private:
  TERSE_COLD Range pieces_of(std::size_t begin, std::size_t end) const;

  static void check_scales(const std::string& name, float learning_rate, float weight_decay);

  static constexpr float largest_rate = 1e30F;
  std::vector<Segment> segments_;
  std::unordered_map<std::string, std::size_t> places_;  // segment numbers by name
  index_t size_ = 0;
  std::uint64_t revision_ = 0;
};

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/core/layout.ipp"
#endif
