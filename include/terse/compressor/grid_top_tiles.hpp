// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "terse/compressor/grid_code_picks.hpp"
#include "terse/compressor/grid_tiles.hpp"
#include "terse/compressor/top_k.hpp"

// Top-k from tiles on a grid executor, by whatever coder, one block of threads to a tile, with the host's picks and bytes: see
// executor/select.hpp and compressor/selection.hpp.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Where tiles' bytes are in the section of their piece: those of tiles before them have the lengths that their shapes ask for.
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

/// A tile's n numbers, k of which travel, and where.
struct TopTile {
  index_t begin;  // arena index
  index_t n, k;
  index_t unit;        // counted through the range
  int packet;          // that it is of; -1: all of them
  index_t section_at;  // its positions, behind which the values are

  template <int S, class Values>
  TERSE_HD static TopTile of(const TileSlice<S>& slice, const TopSections<S, Values>& sections,
                             index_t number) {
    const auto& entry = slice.entry_of(number);
    const TilePlace place = entry.tiles.place(number - entry.first);
    const Piece unit = entry.tiles.unit(place);
    return {unit.offset,
            unit.count,
            sections.selection.most(unit.count),
            entry.unit + number - entry.first,
            entry.packet,
            entry.section + sections.before(entry.tiles, place)};
  }
  TERSE_HD bool is_bitmap() const { return Positions::is_bitmap(n, k); }
  TERSE_HD index_t values_at() const { return section_at + Positions::bytes(n, k); }
  /// Elements that stand side by side for each thread, where their order counts.
  TERSE_HD index_t own() const { return (n + block_threads - 1) / block_threads; }
};

/// The block that a kernel of one block alone believes itself to be.
template <class Block>
struct OnlyBlock : Block {
  TERSE_HD static index_t index() { return 0; }
};

template <class Basis, int S, class Values>
struct EncodeTilesShared {
  /// A copy of a tile; the other one has room for what a selection counts meanwhile, and then for what it finds.
  union Copy {
    float tile[TileTransform<Basis, S>::room];
    SelectFewKernel::Counters counters;
    std::uint32_t positions[std::size_t{S} * S];
  };
  Copy one, other;
  SelectFewKernel::Rest select;
  typename CodePicks<Values>::Shared code;
  std::uint32_t picked[std::size_t{blocks_for(S * S, 32)}];  // a bit each
};

/// Takes tiles all the way: evaluates the message, picks from it in the basis's coordinates, writes the picks, and commits what
/// receivers read of them. No two tiles have an element in common, nor two blocks.
template <class Basis, int S, class Values, class Space, class Incoming, class Message, class Feedback>
struct EncodeTilesKernel {
  static constexpr bool cooperative = true;
  using Shape = TileTransform<Basis, S>;
  using Shared = EncodeTilesShared<Basis, S, Values>;
  TileSlice<S> slice;
  TopSections<S, Values> sections;
  CosineTables tables;
  float limit;  // of numbers
  Mask<Space> mask;
  Incoming incoming;
  Materialize<Message> message;
  Feedback feedback;
  std::byte* section;
  StepDraw draw;

  template <class Block>
  TERSE_HD void operator()(Block& any, Shared& shared) const {
    OnlyBlock<Block> block{any};
    const auto& entry = slice.entry_of(any.index());
    const TopTile tile = TopTile::of(slice, sections, any.index());
    const Shape shape(entry.tiles.place(any.index() - entry.first), tables);
    float *x = shared.one.tile, *spare = shared.other.tile;
    evaluate(block, entry.tiles.piece, shape, x);
    block.sync();
    shape.forward(block, x, spare);
    if constexpr (Basis::transforms) {
      for (int e = block.thread(); e < shape.count(); e += block_threads)
        spare[e] = Shape::within(limit, x[shape.number(e)], message.bad);
      block.sync();
      swap_copies(x, spare);
    }
    auto& rest = spare == shared.other.tile ? shared.other : shared.one;
    SelectFewKernel{x, tile.n, static_cast<std::uint32_t>(tile.k), rest.positions}(block, shared.select,
                                                                                   rest.counters);
    write(block, tile, shared, rest.positions, x);
    block.sync();
    // What has been picked is as receivers read it; of the others they read zeros.
    if constexpr (Basis::transforms) {
      for (int e = block.thread(); e < shape.count(); e += block_threads)
        spare[shape.number(e)] = read(shared, x, e);
      block.sync();
      swap_copies(x, spare);
      shape.inverse(block, x, spare);
    }
    Feedback view = feedback;
    enter(view, entry.tiles.piece);
    for (int e = block.thread(); e < shape.count(); e += block_threads) {
      const index_t i = shape.index(e);
      float decoded;
      if constexpr (Basis::transforms)
        decoded = x[shape.element(e)];
      else
        decoded = read(shared, x, e);
      view.commit(i, keeps(i), view.load(i), decoded);
    }
  }

 private:
  TERSE_HD static void swap_copies(float*& x, float*& spare) {
    float* const other = spare;
    spare = x;
    x = other;
  }
  TERSE_HD bool keeps(index_t i) const { return (mask.word(i) >> i % alignment & 1) != 0; }
  template <class Block>
  TERSE_HD void evaluate(const Block& block, const Piece& piece, const Shape& shape, float* x) const {
    Materialize<Message> f = message;
    enter(f, piece);
    const Tile whole{piece};
    for (int e = block.thread(); e < shape.count(); e += block_threads) {
      const index_t i = shape.index(e);
      incoming.call(f, whole, i - piece.offset, 0, keeps(i));
      x[shape.element(e)] = *feedback.at(i);
    }
  }
  /// Positions and values, which in `x` become what is read of them.
  template <class Block>
  TERSE_HD void write(Block& block, const TopTile& tile, Shared& shared, const std::uint32_t* positions,
                      float* x) const {
    std::byte* const wire = section + tile.section_at;
    for (index_t w = block.thread(); w < sections.bytes(tile.n) / 4; w += block_threads)
      reinterpret_cast<std::uint32_t*>(wire)[w] = 0;
    for (index_t w = block.thread(); w < blocks_for(tile.n, 32); w += block_threads) shared.picked[w] = 0;
    block.sync();
    for (index_t e = block.thread(); e < tile.k; e += block_threads)
      atomic_or(&shared.picked[positions[e] / 32], 1U << positions[e] % 32);
    if (tile.is_bitmap()) {
      block.sync();
      for (index_t w = block.thread(); w < blocks_for(tile.n, 32); w += block_threads)
        reinterpret_cast<std::uint32_t*>(wire)[w] = shared.picked[w];
    } else {
      const PackPositions pack{positions, tile.k, position_bits(tile.n), wire};
      for (index_t g = block.thread(); g < pack.groups(tile.k); g += block_threads) pack(g);
    }
    CodePicks<Values>::code(
        block, shared.code, tile.k, tile.begin, draw, section + tile.values_at(),
        [=](index_t e) { return x[positions[e]]; }, [=](index_t e, float value) { x[positions[e]] = value; });
  }
  TERSE_HD static float read(const Shared& shared, const float* x, int e) {
    return (shared.picked[e / 32] >> e % 32 & 1) != 0 ? x[e] : 0.0F;
  }
};

/// Sections that arrived, as a kernel argument.
struct TilePackets {
  struct Packet {
    const std::byte* section;
    float weight;
  };
  Packet packets[most_packets];
  int count = 0;
};

/// The elements of the sums of weight times what each packet says, one packet after the other. Each position occurs once, in
/// sections that are right.
template <class Basis, int S, class Values>
struct SumTilesKernel {
  static constexpr bool cooperative = true;
  using Coder = PickCoder<Values>;
  using Shape = TileTransform<Basis, S>;
  struct Shared {
    float one[Shape::room], other[Shape::spare_room];
  };
  TileSlice<S> slice;
  TopSections<S, Values> sections;
  TilePackets packets;
  CosineTables tables;
  float* sums;
  index_t begin;  // the arena index of the first
  bool more;      // to the numbers that are there in the elements' places
  bool last;      // else numbers stay

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const auto& entry = slice.entry_of(block.index());
    const TopTile tile = TopTile::of(slice, sections, block.index());
    const Shape shape(entry.tiles.place(block.index() - entry.first), tables);
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

/// Reports what is wrong with each packet, in the host's order; as many blocks for each as there are tiles, or, where tiles are of
/// one, for all.
template <int S, class Values>
struct CheckTilesKernel {
  static constexpr bool cooperative = true;
  using Coder = PickCoder<Values>;
  struct Shared {};
  TileSlice<S> slice;
  TopSections<S, Values> sections;
  TilePackets packets;
  float limit;
  Findings* findings;  // of each packet

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const TopTile tile = TopTile::of(slice, sections, block.index() % slice.tiles);
    const int p = tile.packet < 0 ? static_cast<int>(block.index() / slice.tiles) : tile.packet;
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

/// use(slice, sections) for the tiles of packets' sections.
template <int S, class Values, class Use>
void for_each_top_slice(const Largest& selection, PlacedRanges ranges, Use use) {
  const TopSections<S, Values> sections{selection};
  for_each_tile_slice<S>(
      ranges, [&](const TileSlice<S>& slice) { use(slice, sections); }, sections);
}

/// What is wrong with packet p over ranges[p], whose section is where that is going.
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
                                [&](const auto& slice, const auto& sections) {
                                  ex.launch(
                                      CheckTilesKernel<S, Values>{slice, sections, all, limit, findings},
                                      slice.tiles * (same ? all.count : 1));
                                });
}

}  // namespace terse::detail
