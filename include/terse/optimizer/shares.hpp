// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terse/executor/factors.hpp"
#include "terse/plan.hpp"
#include "terse/transport/channel.hpp"

namespace terse::detail {

/// The elements that one rank owns: its part of each slice of the arena, as MeansToOwners cuts them. They lie one after the
/// other in shares, arenas whose own layout has the owned parts of all segments.
template <Executor E>
class Shares {
 public:
  TERSE_COLD Shares(E executor, const Channel& channel, const Layout& whole, index_t slice_bytes, CutBy how) {
    std::vector<Piece> pieces;
    for (const Range& slice : slices_of(whole.range(), slice_bytes)) {
      const Range mine = shares_of(slice, channel.size(), how)[static_cast<std::size_t>(channel.rank())];
      blocks_.push_back({mine.begin_offset(), layout_.size(), mine.end_offset() - mine.begin_offset()});
      for (const Piece& piece : mine.pieces()) add(whole, piece, how);
      pieces.insert(pieces.end(), mine.pieces().begin(), mine.pieces().end());
    }
    // Every share has segments of every group, so that a group has the same place in all layouts, and of both kinds.
    for (const Segment& segment : whole.segments()) {
      const bool hidden = segment.hidden && how == CutBy::segment;
      const auto matches = [&](const Segment& other) {
        return other.group == segment.group && other.hidden == hidden;
      };
      if (std::none_of(layout_.segments().begin(), layout_.segments().end(), matches))
        add_none_like(segment, hidden);
    }
    const auto by_offset = [](const auto& a, const auto& b) { return a.offset < b.offset; };
    std::sort(pieces.begin(), pieces.end(), by_offset);
    owned_ = Range(std::move(pieces));
    for (const Block& block : blocks_)
      if (block.count > 0) on_host_.push_back({block.offset, block.there});
    std::sort(on_host_.begin(), on_host_.end(), by_offset);
    places_ = buffer<Moved, typename E::memory>(static_cast<index_t>(on_host_.size()));
    put(executor, view<const Moved>(on_host_.data(), places_.size()), out<E, Moved>(places_.all()));
  }

  /// The layout of a share.
  const Layout& layout() const { return layout_; }
  /// The owned elements in the arena.
  const Range& owned() const { return owned_; }
  /// The table from the arena to a share, for `find`.
  const Moved* places() const { return places_.data(); }
  index_t count() const { return places_.size(); }
  /// That table on the host.
  std::span<const Moved> on_host() const { return on_host_; }

  /// Takes over the scales of segments that changed.
  void follow(const Layout& whole) {
    if (whole.revision() == revision_) return;
    revision_ = whole.revision();
    for (std::size_t s = 0; s < origins_.size(); ++s) {
      const Segment& from = whole.segments()[static_cast<std::size_t>(origins_[s])];
      layout_.rescale(layout_.segments()[s].name, from.learning_rate_scale, from.weight_decay);
    }
  }

  /// Calls visit for a part of the state: for a share once for each block, at its place in the arena.
  template <class Visit, class Value, class Space>
  void visit_blocks(Visit&& visit, const std::string& name, view<Value, Space> part, index_t offset) const {
    if (part.size() != layout_.size()) return visit(name, part, offset);
    for (std::size_t k = 0; k < blocks_.size(); ++k) {
      const Block& block = blocks_[k];
      visit((k == 0 ? "" : "slice_" + std::to_string(k) + "_") + name,
            view<Value, Space>(part.data() + block.there, block.count), block.offset);
    }
  }

 private:
  /// The owned elements of one slice, which are consecutive, padding included: from `offset` in the arena and from `there` in a
  /// share.
  struct Block {
    index_t offset, there, count;
  };

  void add(const Layout& whole, const Piece& piece, CutBy how) {
    Segment part = whole.segments()[static_cast<std::size_t>(piece.segment)];
    if (how != CutBy::segment) {
      part.name += " from " + std::to_string(piece.offset);
      part.shape = {piece.count};
      part.hidden = false;
    }
    layout_.add(std::move(part));
    origins_.push_back(piece.segment);
  }
  void add_none_like(const Segment& segment, bool hidden) {
    Segment none;
    none.name = "none like " + segment.name;
    none.shape = {0, 0};
    none.group = segment.group;
    none.hidden = hidden;
    layout_.add(std::move(none));
  }

  Layout layout_;
  std::vector<index_t> origins_;  // for the segments of a share, the arena's segments
  std::vector<Block> blocks_;     // in the order of slices
  Range owned_;
  std::vector<Moved> on_host_;
  buffer<Moved, typename E::memory> places_;
  std::uint64_t revision_ = 0;
};

/// A visitor of a state over shares.
template <class Visit, Executor E>
struct BlockByBlock {
  const Shares<E>& shares;
  Visit& visit;
  template <class Value, class Space>
  void operator()(const std::string& name, view<Value, Space> part, index_t offset) const {
    shares.visit_blocks(visit, name, part, offset);
  }
  void operator()(const std::string& name, std::uint64_t& value) const { visit(name, value); }
};

}  // namespace terse::detail
