// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "terse/compressor/top_k.hpp"
#include "terse/device/compressor/tiles.hpp"
#include "terse/device/compressor/top_picks.hpp"

// The largest numbers of each tile on a grid executor, one block of threads per tile, with the same picks and bytes as
// on the host: the tiles' places in sections, and received sections.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Offsets of tiles' bytes in the section of their piece, computed from the shapes of the preceding tiles.
template <int S, class Values>
struct TopSections {
  using Coder = PickCoder<Values>;
  Largest selection;

  TERSE_HD index_t bytes(index_t n) const {
    const index_t k = selection.most(n);
    return Positions::bytes(n, k) + Coder::bytes(k);
  }
  TERSE_HD index_t before(const PieceTiles<S>& tiles, const TilePlace& place) const {
    const index_t at = place.first - tiles.piece.offset, width = place.stride;
    return rows(at / width, width) + at % width / S * bytes(place.rows * S);
  }
  index_t operator()(const PieceTiles<S>& tiles) const {
    const index_t width = tiles.columns > 0 ? tiles.columns : S, rest = tiles.piece.count % width;
    return rows(tiles.piece.count / width, width) + (rest > 0 ? bytes(rest) : 0);
  }

 private:
  TERSE_HD index_t rows(index_t count, index_t width) const {
    return count / S * row_of_tiles(S, width) + (count % S > 0 ? row_of_tiles(count % S, width) : 0);
  }
  TERSE_HD index_t row_of_tiles(index_t height, index_t width) const {
    return width / S * bytes(height * S) + (width % S > 0 ? bytes(height * (width % S)) : 0);
  }
};

/// A tile of one section, or of several.
struct TopTile : TopPicks {
  index_t unit;  // number in the range
  int packet;    // its packet; -1: all packets

  /// Returns the number of adjacent elements per thread, where their order matters.
  TERSE_HD index_t own() const { return (n + block_threads - 1) / block_threads; }
};

/// Tiles of a kernel, one per block.
template <int S, class Values>
struct TopTiles {
  static constexpr bool variable = false;
  TileSlice<S> slice;
  TopSections<S, Values> sections;

  TERSE_HD TopTile operator()(index_t number) const {
    const auto& entry = slice.entry_of(number);
    const TilePlace place = entry.tiles.place(number - entry.first);
    const Piece unit = entry.tiles.unit(place);
    return {{entry.tiles.piece, place, unit.offset, unit.count, sections.selection.most(unit.count),
             entry.section + sections.before(entry.tiles, place)},
            entry.unit + number - entry.first,
            entry.packet};
  }
};

/// Received sections, as a kernel argument.
struct TilePackets {
  struct Packet {
    const std::byte* section;
    float weight;
  };
  Packet packets[most_packets];
  int count = 0;
};

/// Kernel that computes the weighted sum of the packets' values, packet by packet, and writes the elements of the sum.
/// Each position occurs once in valid sections.
template <class Basis, int S, class Values>
struct SumTilesKernel {
  static constexpr bool cooperative = true;
  using Coder = PickCoder<Values>;
  using Shape = TileTransform<Basis, S>;
  struct Shared {
    float one[Shape::room], other[Shape::spare_room];
  };
  TopTiles<S, Values> tiles;
  TilePackets packets;
  CosineTables tables;
  float* sums;
  index_t begin;  // arena index of the first sum
  bool more;      // adds to the numbers that are in the elements' places
  bool last;      // transforms to elements; else numbers stay

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const TopTile tile = tiles(block.index());
    const Shape shape(tile.place, tables);
    float *x = shared.one, *spare = shared.other;
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      x[shape.number(e)] = more ? sums[shape.index(e) - begin] : 0.0F;
    const int from = tile.packet < 0 ? 0 : tile.packet, behind = tile.packet < 0 ? packets.count : from + 1;
    for (int p = from; p < behind; ++p) {
      block.sync();
      add(block, tile, packets.packets[p], shape, x);
    }
    block.sync();
    if (last) shape.inverse(block, x, spare);
    for (int e = block.thread(); e < shape.count(); e += block_threads)
      sums[shape.index(e) - begin] = x[last ? shape.element(e) : shape.number(e)];
  }

 private:
  template <class Block>
  TERSE_HD static void add(Block& block, const TopTile& tile, const TilePackets::Packet& packet,
                           const Shape& shape, float* x) {
    const std::byte* const wire = packet.section + tile.section_at;
    const std::byte* const values = packet.section + tile.values_at();
    const auto add_to = [&](int position, index_t e) {
      x[shape.number(position)] += packet.weight * Coder::read(values, tile.k, e);
    };
    if (!tile.is_bitmap()) {
      const PackedPositions list = Positions::list_at(wire, tile.n);
      for (index_t e = block.thread(); e < tile.k; e += block_threads)
        if (const std::uint32_t position = list[e]; position < static_cast<std::uint32_t>(tile.n))
          add_to(static_cast<int>(position), e);
      return;
    }
    const index_t first = block.thread() * tile.own();
    const index_t end = first + tile.own() < tile.n ? first + tile.own() : tile.n;
    std::uint32_t own = 0, all = 0;
    for (index_t e = first; e < end; ++e) own += is_set(wire, e) ? 1 : 0;
    index_t entry = block.exclusive_sum(own, all);
    for (index_t e = first; e < end; ++e)
      if (is_set(wire, e)) {
        if (entry < tile.k) add_to(static_cast<int>(e), entry);
        ++entry;
      }
  }
  TERSE_HD static bool is_set(const std::byte* bitmap, index_t e) {
    return (std::to_integer<unsigned>(bitmap[e / 8]) >> e % 8 & 1U) != 0;
  }
};

/// Kernel that reports the faults of each packet, in the host's order. Takes a block per tile and packet or, where each
/// tile belongs to one packet, a block per tile.
template <int S, class Values>
struct CheckTilesKernel {
  static constexpr bool cooperative = true;
  using Coder = PickCoder<Values>;
  struct Shared {};
  TopTiles<S, Values> tiles;
  TilePackets packets;
  float limit;
  Findings* findings;  // of each packet

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const index_t all = tiles.slice.tiles;
    const TopTile tile = tiles(block.index() % all);
    const int p = tile.packet < 0 ? static_cast<int>(block.index() / all) : tile.packet;
    const std::byte* const section = packets.packets[p].section;
    const Arrived wire{section + tile.section_at, tile.k}, values{section + tile.values_at(), tile.k};
    const Report report{findings + p, tile.unit};
    std::uint32_t own = 0, set = 0;
    if (tile.is_bitmap()) {
      for (index_t w = block.thread(); w < aligned(tile.n) / 64; w += block_threads) {
        const std::uint64_t word = Positions::load(wire.bytes() + 8 * w);
        if (tile.n - 64 * w < 64 && word >> (tile.n - 64 * w) != 0)
          report.next().note(w, SectionFault::beyond_end);
        own += static_cast<std::uint32_t>(ones_in(word));
      }
      block.exclusive_sum(own, set);
      if (block.thread() == 0 && set != tile.k) report.next().note(tile.n, SectionFault::other_population);
    } else {
      const Positions::CheckList check{wire, tile.n, report.next()};
      for (index_t e = block.thread(); e < tile.k; e += block_threads) check(e);
    }
    const CheckValues<Coder> check{values, limit, report.last()};
    for (index_t f = block.thread(); f < check.entries(); f += block_threads) check(f);
  }
};

TERSE_NUMERICS_END

/// Cuts the tiles of all packets' sections into slices and calls use(tiles) for each slice, in order.
template <int S, class Values, class Use>
void for_each_top_slice(const Largest& selection, PlacedRanges ranges, Use use) {
  const TopSections<S, Values> sections{selection};
  for_each_tile_slice<S>(
      ranges,
      [&](const TileSlice<S>& slice) {
        use(TopTiles<S, Values>{slice, sections});
      },
      sections);
}

/// Reports the faults of packet p over ranges[p]. Its section begins at `going` of that range.
template <int S, class Values, GridExecutor E>
void check_tiles(E ex, const Largest& selection, PlacedRanges ranges, const std::byte* const* packets,
                 float limit, Findings* findings) {
  TilePackets all;
  std::array<PlacedRange, most_packets> here;
  bool same = true;
  for (const PlacedRange& placed : ranges) {
    const auto p = static_cast<std::size_t>(all.count);
    same = same && placed.range == ranges[0].range;
    here[p].range = placed.range;
    all.packets[all.count++] = {packets[p] + placed.going, 1};
  }
  for_each_top_slice<S, Values>(selection, PlacedRanges(here.data(), same ? 1 : ranges.size()),
                                [&](const TopTiles<S, Values>& tiles) {
                                  ex.launch(CheckTilesKernel<S, Values>{tiles, all, limit, findings},
                                            tiles.slice.tiles * (same ? all.count : 1));
                                });
}

}  // namespace terse::detail
