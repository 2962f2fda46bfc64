// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "terse/compressor/keyed.hpp"
#include "terse/device/verbs/pack.hpp"

// Keyed compressors on a grid executor, with the same bits as on the host; errors are recorded, not returned.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

static_assert(checked_elements == reduction_block, "a tile has one checksum");

template <class Use>
concept UsesNumbers = requires(const Use& use, const Piece& piece) {
  use(piece, index_t{}, 0.0F, 0, 0.0F);
};

/// Returns the sum modulo 2^64 over the tile's threads, on the tile's first thread. All threads of a block must call
/// it.
template <class Block>
TERSE_HD std::uint64_t sum_of_tile(Block& block, std::uint64_t (&sums)[block_threads], std::uint64_t own) {
  const int thread = block.thread();
  sums[thread] = own;
  block.sync();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (thread % lanes < half) sums[thread] += sums[thread + half];
    block.sync();
  }
  return sums[thread];
}

/// Kernel that writes checksums and codes of message(piece, i).
template <class Grid, bool Stochastic, class F>
struct EncodeKeyedKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    std::uint64_t sums[block_threads];
  };
  Slice slice;
  Grid grid;
  F message_;
  std::byte *checks, *wire;
  StepDraw draw;
  std::uint32_t* bad;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const index_t number = tile_number(block);
    const int lane = block.thread() % lanes;
    std::uint64_t sum = 0;
    if (number < slice.tiles) {  // equal for all threads of a warp
      const Tile tile = slice.tile(number);
      F message = message_;
      enter(message, tile.piece);
      WarpRandom<Block> random;
      int row = 0;
      for (index_t b = tile.begin; b < tile.end; b += lanes, ++row) {
        const index_t first = tile.piece.offset + b;
        std::uint32_t bits = 0;
        if constexpr (Stochastic) {
          if (row % 8 == 0) random.refill(draw.here(), first, lane);
          bits = random.take(block, row % 8, lane);
        }
        std::uint64_t z = 0;
        if (b + lane < tile.end) {
          bool good;
          z = Grid::modulo(grid.coordinate(message(tile.piece, first + lane), bits, good));
          if (!good) atomic_raise(bad);
        }
        store_codes<Grid::bits>(block, tile, b, lane, static_cast<CodeElement<Grid::bits>>(z),
                                wire + tile.going);
        sum += block_weight(first) * z;
      }
    }
    sum = sum_of_tile(block, shared.sums, odd_weight(static_cast<std::uint64_t>(lane)) * sum);
    if (lane == 0 && number < slice.tiles) store_aligned(checks + 8 * (slice.first_tile + number), sum);
  }
};

/// Kernel that decodes the packets' codes with key(piece, i), one packet after the other, and passes the values to
/// `use`.
template <class Grid, class Key, class Use>
struct DecodeKeyedKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    std::uint64_t sums[block_threads];
  };
  Slice slice;
  Grid grid;
  Arriving<OneEach<PlainCode<Grid::bits>>> incoming;
  KeyedPackets packets;
  Key key_;
  Use use_;
  std::uint32_t* wrong;  // of each packet

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const index_t number = tile_number(block);
    const int lane = block.thread() % lanes;
    const bool works = number < slice.tiles;
    Tile tile{};
    Key key = key_;
    [[maybe_unused]] Use use = use_;
    if (works) {
      tile = slice.tile(number);
      enter(use, tile.piece);
      enter(key, tile.piece);
    }
    TERSE_ROLLED
    for (int p = 0; p < packets.count; ++p) {
      std::uint64_t sum = 0;
      if (works) sum = read(tile, p, lane, key, use);
      sum = sum_of_tile(block, shared.sums, odd_weight(static_cast<std::uint64_t>(lane)) * sum);
      if (works && lane == 0 &&
          sum != load_aligned<std::uint64_t>(packets.sections[p] + 8 * (slice.first_tile + number)))
        atomic_raise(wrong + p);
    }
  }

 private:
  TERSE_HD std::uint64_t read(Tile tile, int p, int lane, const Key& key, const Use& use) const {
    tile.packet = p;
    std::uint64_t sum = 0;
    for (index_t b = tile.begin; b + lane < tile.end; b += lanes) {
      const index_t first = tile.piece.offset + b;
      const auto code = static_cast<double>(incoming.sum(tile, b, lane));
      bool good;
      const double z = grid.coordinate_near(key(tile.piece, first + lane), code, good);
      if (!good) atomic_raise(wrong + p);
      sum += block_weight(first) * Grid::modulo(z);
      if constexpr (UsesNumbers<Use>)
        use(tile.piece, first + lane, grid.value(z), packets.first + p, packets.weights[p]);
      else if constexpr (!std::is_same_v<Use, NoUse>)
        use(tile.piece, first + lane, grid.value(z));
    }
    return sum;
  }
};

/// Encodes as on the host, with `bad` in the executor's memory.
template <GridExecutor E, int Bits, class Rounding, class F>
void encode_keyed(E ex, const Range& range, const Grid<Bits, Rounding>& grid, F message, std::byte* section,
                  const StepDraw& draw, std::uint32_t& bad) {
  std::byte* const wire = section + checksum_bytes(range);
  for_each_slice<0, Bits>(range, Units{}, [&](const Slice& slice, bool) {
    launch_tiles(ex, slice,
                 EncodeKeyedKernel<Grid<Bits, Rounding>, Rounding::stochastic, F>{slice, grid, message,
                                                                                  section, wire, draw, &bad});
  });
}

/// Decodes several packets. Sets wrong[p], in the executor's memory, to 1 if a checksum or a key was wrong.
template <GridExecutor E, int Bits, class Rounding, class Key, class Use>
void decode_keyed(E ex, const Range& range, const Grid<Bits, Rounding>& grid, const KeyedPackets& packets,
                  Key key, Use use, std::uint32_t* wrong) {
  using Incoming = Packets<PlainCode<Bits>>;
  typename Incoming::Source sources[most_packets];
  for (int p = 0; p < packets.count; ++p) sources[p].codes = packets.sections[p] + checksum_bytes(range);
  const Arriving<OneEach<PlainCode<Bits>>> incoming(OneEach<PlainCode<Bits>>{{sources, packets.count, {}}});
  for_each_slice<Bits, 0>(range, Units{}, [&](const Slice& slice, bool) {
    launch_tiles(
        ex, slice,
        DecodeKeyedKernel<Grid<Bits, Rounding>, Key, Use>{slice, grid, incoming, packets, key, use, wrong});
  });
}
/// Decodes as on the host, with `wrong` in the executor's memory.
template <GridExecutor E, int Bits, class Rounding, class Key, class Use>
void decode_keyed(E ex, const Range& range, const Grid<Bits, Rounding>& grid, const std::byte* section,
                  Key key, Use use, std::uint32_t& wrong) {
  KeyedPackets one;
  one.sections[one.count++] = section;
  decode_keyed(ex, range, grid, one, key, use, &wrong);
}

TERSE_NUMERICS_END

}  // namespace terse::detail
