// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"
#include "terse/core/utf8.hpp"

// This header keeps to C++17, so that a translation unit held at C++17 by its framework can describe its
// parameters.

namespace terse {

/// Counts and offsets of elements.
using index_t = std::int64_t;

/// Segments, chunks and pieces start at multiples of this many elements: one word of mask or sign bits.
inline constexpr index_t alignment = 64;

/// Rounds up to a multiple of `alignment`.
constexpr index_t aligned(index_t count) { return (count + alignment - 1) / alignment * alignment; }

/// A named tensor inside the flat arena of parameters.
struct Segment {
  std::string name;               ///< in errors and checkpoints
  std::vector<index_t> shape;     ///< the tensor's dimensions; empty for a scalar
  float learning_rate_scale = 1;  ///< multiplies the recipe's learning rate here
  float weight_decay = 1;         ///< multiplies the recipe's weight decay here; 0 switches it off
  bool compress = true;           ///< false: travels dense, with a live variance
  int group = 0;                  ///< whose hyper-parameters it has; those of 0 are the recipe's own
  bool hidden =
      false;  ///< a matrix between input and output, for methods that treat those apart: see OnHidden
  index_t offset = 0;  ///< first element in the arena; set by the layout
  index_t count = 0;   ///< product of `shape`; set by the layout
};

/// A run of elements of one segment. Verbs pass it to functors beside the arena index.
struct Piece {
  index_t segment = 0;  ///< which segment of the layout
  index_t offset = 0;   ///< first element in the arena, a multiple of `alignment`
  index_t count = 0;    ///< elements, without padding
};

/// A list of pieces in the order of the arena. Padding belongs to no piece, so no functor ever sees it.
class Range {
 public:
  Range() = default;
  /// Throws usage_error for pieces that overlap, run backwards or start off the alignment.
  explicit Range(std::vector<Piece> pieces) : pieces_(std::move(pieces)) { count(); }

  /// Becomes just this piece; allocates at the first call only.
  void assign(const Piece& piece) {
    pieces_.assign(1, piece);
    columns_.clear();
    elements_ = piece.count;
  }
  /// Becomes these pieces, as the constructor would; allocates where there are more than ever before.
  void assign(const Piece* pieces, std::size_t count_) {
    pieces_.assign(pieces, pieces + count_);
    columns_.clear();
    count();
  }

  const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  /// Elements in all pieces together.
  index_t elements() const noexcept { return elements_; }
  /// Columns of the matrix that piece `p` is; 0 where it is a vector, a part of a segment, or the range was made of
  /// pieces alone, see Layout::range_of.
  index_t columns(std::size_t p) const { return p < columns_.size() ? columns_[p] : 0; }
  /// How many pieces are of this segment.
  std::size_t pieces_of(index_t segment) const {
    const auto first = std::lower_bound(pieces_.begin(), pieces_.end(), segment,
                                        [](const Piece& piece, index_t s) { return piece.segment < s; });
    auto last = first;
    while (last != pieces_.end() && last->segment == segment) ++last;
    return static_cast<std::size_t>(last - first);
  }
  /// First arena index, 0 for an empty range.
  index_t begin_offset() const noexcept { return pieces_.empty() ? 0 : pieces_.front().offset; }
  /// One past the last arena index, rounded up to the alignment.
  index_t end_offset() const noexcept {
    return pieces_.empty() ? 0 : aligned(pieces_.back().offset + pieces_.back().count);
  }

  /// Cuts the range into `parts` ranges of equal size: part r ends where the first (r + 1) / parts of the
  /// elements end, rounded up to the alignment within its piece. Parts differ by less than `2 * alignment`
  /// elements for each piece they touch; small ranges leave parts empty. All ranks cut alike.
  TERSE_COLD std::vector<Range> cut(int parts) const {
    if (parts < 1) throw usage_error("a range can't be cut into " + std::to_string(parts) + " parts");
    std::vector<Range> cuts(static_cast<std::size_t>(parts));
    index_t before = 0;
    int part = 0;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const Piece& piece = pieces_[p];
      index_t done = 0;
      while (done < piece.count) {
        const index_t goal = elements_ * (part + 1) / parts - before;
        const index_t stop =
            part + 1 == parts ? piece.count : std::min(piece.count, aligned(std::max(goal, done)));
        if (stop > done) {
          Range& here = cuts[static_cast<std::size_t>(part)];
          here.pieces_.push_back({piece.segment, piece.offset + done, stop - done});
          here.columns_.push_back(stop - done == piece.count ? columns(p) : 0);
        }
        done = stop;
        if (done < piece.count) ++part;
      }
      before += piece.count;
    }
    for (Range& cut : cuts) cut.count();
    return cuts;
  }

 private:
  void count() {
    elements_ = 0;
    index_t end = 0;
    for (const Piece& piece : pieces_) {
      if (piece.offset % alignment != 0 || piece.offset < end || piece.count < 0)
        throw usage_error(
            "a range's pieces must be in order, apart, and start at multiples of 64 elements; one starts "
            "at " +
            std::to_string(piece.offset));
      end = piece.offset + piece.count;
      elements_ += piece.count;
    }
  }

  friend class Layout;
  std::vector<Piece> pieces_;
  std::vector<index_t> columns_;  // of the first pieces; of those behind them nothing is known
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
  /// that overflows, a hidden segment of less than two dimensions, or a name that is taken or isn't UTF-8, as checkpoints need it.
  TERSE_COLD Layout& add(Segment segment) {
    if (!detail::is_utf8(segment.name))
      throw usage_error("segment " + std::to_string(segments_.size()) + " is named '" + segment.name +
                        "', which is not UTF-8: checkpoints could not be saved");
    check_scales(segment.name, segment.learning_rate_scale, segment.weight_decay);
    if (segment.group < 0)
      throw usage_error("segment '" + segment.name + "' is of group " + std::to_string(segment.group) +
                        ": groups count from 0");
    if (segment.hidden && segment.shape.size() < 2)
      throw usage_error("segment '" + segment.name + "' is marked as hidden and is no matrix: it has " +
                        std::to_string(segment.shape.size()) +
                        " dimension(s), and hidden ones have two or more");
    index_t count = 1;
    for (const index_t extent : segment.shape) {
      if (extent < 0) throw usage_error("segment '" + segment.name + "' has a negative dimension");
      if (extent != 0 && count > (index_t{1} << 56) / extent)
        throw usage_error("segment '" + segment.name + "' has too many elements");
      count *= extent;
    }
    if (!places_.emplace(segment.name, segments_.size()).second)
      throw usage_error("two segments are named '" + segment.name + "'");
    segment.offset = size_;
    segment.count = count;
    size_ += aligned(count);
    segments_.push_back(std::move(segment));
    return *this;
  }

  /// Gives a segment other scales. Throws usage_error for a name that no segment has, and for scales that `add` refuses.
  void rescale(std::string_view name, float learning_rate_scale, float weight_decay) {
    check_scales(std::string(name), learning_rate_scale, weight_decay);
    if (const auto found = places_.find(std::string(name)); found != places_.end()) {
      Segment& segment = segments_[found->second];
      segment.learning_rate_scale = learning_rate_scale;
      segment.weight_decay = weight_decay;
      ++revision_;
      return;
    }
    std::string text = "no segment is named '" + std::string(name) + "'";
    constexpr std::size_t shown = 8;
    for (std::size_t s = 0; s < segments_.size() && s < shown; ++s)
      text += (s == 0 ? "; there are '" : ", '") + segments_[s].name + "'";
    throw usage_error(text + (segments_.size() > shown ? ", ..." : ""));
  }
  /// Counts changes by `rescale`.
  std::uint64_t revision() const noexcept { return revision_; }

  /// One segment of `count` elements named "parameters".
  static Layout flat(index_t count) {
    Layout layout;
    layout.add({"parameters", {count}});
    return layout;
  }

  const std::vector<Segment>& segments() const noexcept { return segments_; }
  /// The groups that its segments are of, and 0, in ascending order.
  TERSE_COLD std::vector<int> groups() const {
    std::vector<int> all(1, 0);
    for (const Segment& segment : segments_) all.push_back(segment.group);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  /// Elements of the arena, padding included: what a parameter or gradient view must hold.
  index_t size() const noexcept { return size_; }

  /// All segments, one piece each; empty segments have none.
  Range range() const { return pieces_of(0, segments_.size()); }

  /// Ranges of consecutive whole segments, each of at least `elements` elements but the last.
  TERSE_COLD std::vector<Range> buckets(index_t elements) const {
    std::vector<Range> ranges;
    std::size_t begin = 0;
    index_t held = 0;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      held += segments_[s].count;
      if (held >= elements || s + 1 == segments_.size()) {
        ranges.push_back(pieces_of(begin, s + 1));
        begin = s + 1;
        held = 0;
      }
    }
    return ranges;
  }

  /// The pieces of `range` whose segment has `compress == wanted`.
  TERSE_COLD Range filter(const Range& range, bool wanted) const {
    std::vector<Piece> pieces;
    for (const Piece& piece : range.pieces())
      if (segments_[static_cast<std::size_t>(piece.segment)].compress == wanted) pieces.push_back(piece);
    return range_of(std::move(pieces));
  }

  /// These pieces as a range that knows which of them are whole matrices: segments of two dimensions and more, the first
  /// one by all others, with more than one row and column.
  TERSE_COLD Range range_of(std::vector<Piece> pieces) const {
    Range range(std::move(pieces));
    for (const Piece& piece : range.pieces_) {
      const Segment& segment = segments_[static_cast<std::size_t>(piece.segment)];
      const index_t rows = segment.shape.empty() ? 1 : segment.shape.front();
      const bool matrix = rows > 1 && rows < segment.count && piece.count == segment.count;
      range.columns_.push_back(matrix ? segment.count / rows : 0);
    }
    return range;
  }

 private:
  TERSE_COLD Range pieces_of(std::size_t begin, std::size_t end) const {
    std::vector<Piece> pieces;
    for (std::size_t s = begin; s < end; ++s)
      if (segments_[s].count > 0)
        pieces.push_back({static_cast<index_t>(s), segments_[s].offset, segments_[s].count});
    return range_of(std::move(pieces));
  }

  static void check_scales(const std::string& name, float learning_rate, float weight_decay) {
    // NaN fails the comparisons.
    if (!(learning_rate >= 0 && learning_rate < largest_rate) ||
        !(weight_decay >= 0 && weight_decay < largest_rate))
      throw usage_error("segment '" + name +
                        "' needs a learning_rate_scale and a weight_decay that are finite and >= 0");
  }

  static constexpr float largest_rate = 1e30F;
  std::vector<Segment> segments_;
  std::unordered_map<std::string, std::size_t> places_;  // of names
  index_t size_ = 0;
  std::uint64_t revision_ = 0;
};

}  // namespace terse
