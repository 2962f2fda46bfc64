// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "terse/core/layout.hpp"
#include "terse/core/separate.hpp"

namespace terse {

TERSE_CORE std::size_t Range::pieces_of(index_t segment) const {
  const auto first = std::lower_bound(pieces_.begin(), pieces_.end(), segment,
                                      [](const Piece& piece, index_t s) { return piece.segment < s; });
  auto last = first;
  while (last != pieces_.end() && last->segment == segment) ++last;
  return static_cast<std::size_t>(last - first);
}

TERSE_CORE std::vector<Range> Range::cut(int parts) const {
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

TERSE_CORE std::vector<Range> Range::divide(index_t parts) const {
  std::vector<Range> ranges(static_cast<std::size_t>(parts));
  index_t before = 0;
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const double middle = static_cast<double>(before) + 0.5 * static_cast<double>(pieces_[p].count);
    const double part = middle * static_cast<double>(parts) / static_cast<double>(elements_);
    Range& here = ranges[static_cast<std::size_t>(part)];
    here.pieces_.push_back(pieces_[p]);
    here.columns_.push_back(columns(p));
    before += pieces_[p].count;
  }
  for (Range& range : ranges) range.count();
  return ranges;
}

TERSE_CORE void Range::count() {
  elements_ = 0;
  index_t end = 0;
  for (const Piece& piece : pieces_) {
    if (piece.offset % alignment != 0 || piece.offset < end || piece.count < 0)
      throw usage_error(
          "a range's pieces must be in order, must not overlap, and must start at multiples of 64 elements; "
          "one starts at " +
          std::to_string(piece.offset));
    end = piece.offset + piece.count;
    elements_ += piece.count;
  }
}

TERSE_CORE Layout& Layout::add(Segment segment) {
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

TERSE_CORE void Layout::rescale(std::string_view name, float learning_rate_scale, float weight_decay) {
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

TERSE_CORE Layout Layout::flat(index_t count) {
  Layout layout;
  layout.add({"parameters", {count}});
  return layout;
}

TERSE_CORE std::vector<int> Layout::groups() const {
  std::vector<int> all(1, 0);
  for (const Segment& segment : segments_) all.push_back(segment.group);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

TERSE_CORE std::vector<Range> Layout::buckets(index_t elements) const {
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

TERSE_CORE Range Layout::filter(const Range& range, bool wanted) const {
  std::vector<Piece> pieces;
  for (const Piece& piece : range.pieces())
    if (segments_[static_cast<std::size_t>(piece.segment)].compress == wanted) pieces.push_back(piece);
  return range_of(std::move(pieces));
}

TERSE_CORE Range Layout::range_of(std::vector<Piece> pieces) const {
  Range range(std::move(pieces));
  for (const Piece& piece : range.pieces_) {
    const Segment& segment = segments_[static_cast<std::size_t>(piece.segment)];
    const index_t rows = segment.shape.empty() ? 1 : segment.shape.front();
    const bool matrix = rows > 1 && rows < segment.count && piece.count == segment.count;
    range.columns_.push_back(matrix ? segment.count / rows : 0);
  }
  return range;
}

TERSE_CORE Range Layout::pieces_of(std::size_t begin, std::size_t end) const {
  std::vector<Piece> pieces;
  for (std::size_t s = begin; s < end; ++s)
    if (segments_[s].count > 0)
      pieces.push_back({static_cast<index_t>(s), segments_[s].offset, segments_[s].count});
  return range_of(std::move(pieces));
}

TERSE_CORE void Layout::check_scales(const std::string& name, float learning_rate, float weight_decay) {
  // NaN fails the comparisons.
  if (!(learning_rate >= 0 && learning_rate < largest_rate) ||
      !(weight_decay >= 0 && weight_decay < largest_rate))
    throw usage_error("segment '" + name +
                      "' needs a learning_rate_scale and a weight_decay that are finite and >= 0");
}

}  // namespace terse
