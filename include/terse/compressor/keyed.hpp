// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "terse/compressor/concept.hpp"
#include "terse/compressor/rounding.hpp"
#include "terse/executor/host.hpp"
#include "terse/executor/placed_ranges.hpp"

// Common parts of the keyed compressors: codes modulo 2^Bits that the reader completes with its own vector, the key,
// and checksums that detect wrong results. On grid executors: device/compressor/keyed.hpp.

namespace terse {

namespace detail {

/// The number of elements per checksum, counted from the start of each piece.
inline constexpr index_t checked_elements = 4096;

}  // namespace detail

TERSE_NUMERICS_BEGIN

namespace detail {

/// Returns an odd number, otherwise random: the finalizer of splitmix64.
TERSE_HD constexpr std::uint64_t odd_weight(std::uint64_t i) {
  i = (i + 1) * 0x9E3779B97F4A7C15;
  i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9;
  i = (i ^ (i >> 27)) * 0x94D049BB133111EB;
  return (i ^ (i >> 31)) | 1;
}
/// Returns the weight of the sum of a block that begins at arena index `first`, a multiple of 64.
TERSE_HD constexpr std::uint64_t block_weight(index_t first) {
  return odd_weight(static_cast<std::uint64_t>(lanes + first / lanes));
}
inline constexpr auto lane_weights = [] {
  std::array<std::uint64_t, lanes> weights{};
  for (std::size_t l = 0; l < weights.size(); ++l) weights[l] = odd_weight(l);
  return weights;
}();

/// Returns the summand of 64 coordinates from arena index `first` in the checksum, which is the sum of w_i z_i modulo
/// 2^64. All weights are odd: w_i = odd_weight(64 + i / 64) * odd_weight(i % 64). The sum is of integers, so the order
/// is free.
inline std::uint64_t block_checksum(index_t first, const std::uint64_t* z) {
  std::uint64_t sum = 0;
  for (int l = 0; l < lanes; ++l) sum += lane_weights[static_cast<std::size_t>(l)] * z[l];
  return block_weight(first) * sum;
}

/// The numbers z * step; z modulo 2^Bits is sent.
template <int Bits, class Rounding>
struct Grid {
  static_assert((Bits >= 1 && Bits <= 8) || Bits == 16, "terse: a keyed compressor has 1 to 8 bits, or 16");
  static_assert(
      Bits >= 2 || !Rounding::stochastic,
      "terse: with one bit and stochastic rounding no distance between sender and reader is safe; take "
      "Nearest or 2 bits");
  static constexpr int bits = Bits;
  static constexpr double cells = 1 << Bits;
  /// The largest distance of x and the key, in steps, at which a code is decoded correctly: cells / 2 minus the
  /// rounding error.
  static constexpr double reach = cells / 2 - (Rounding::stochastic ? 1 : 0.5);

  double step = 1;
  double per_step = 1;
  double limit = 0;  ///< the largest |x| and |key|, in steps

  /// Limits coordinates to 2^40: up to there, doubles hold coordinates to 2^-12 or better and their sums with codes
  /// exactly.
  explicit Grid(double step_)
      : step(step_),
        per_step(1 / step_),
        limit(std::min(0x1p40, static_cast<double>(largest_finite) / step_)) {}

  /// Returns the coordinate of a value to send. If the value is not finite or too large, returns 0 and sets `good` to
  /// false.
  TERSE_HD double coordinate(float x, std::uint32_t random, bool& good) const {
    const double t = kept_within(limit, static_cast<double>(x) * per_step, good);
    if constexpr (Rounding::stochastic)
      return rounded(t + ((static_cast<std::int32_t>(random) + 0.5) * 0x1p-16 - 0.5));
    else
      return rounded(t);
  }
  /// Returns the coordinate of the number with this code that is nearest to the key; keys have the limits of values.
  TERSE_HD double coordinate_near(float key, double code, bool& good) const {
    const double t = kept_within(limit, static_cast<double>(key) * per_step, good);
    return code + cells * rounded((t - code) * (1 / cells));
  }
  TERSE_HD float value(double z) const { return static_cast<float>(z * step); }
  /// Returns the integer z modulo 2^64.
  TERSE_HD static constexpr std::uint64_t modulo(double z) {
    constexpr auto zero = std::bit_cast<std::uint64_t>(integers);
    return std::bit_cast<std::uint64_t>(z + integers) - zero;
  }

 private:
  /// At 1.5 * 2^52 the spacing of doubles is 1, so an addition rounds and the mantissa holds the integer.
  static constexpr double integers = 0x1.8p52;

  /// Rounds to the nearest integer, ties to even; never -0. For |t| <= 2^50.
  TERSE_HD static constexpr double rounded(double t) { return (t + integers) - integers; }
  /// Returns t, or 0 by masking bits (see keep_if) if |t| exceeds `most` or t is NaN.
  TERSE_HD static constexpr double kept_within(double most, double t, bool& good) {
    const auto word = std::bit_cast<std::uint64_t>(t);
    good = std::bit_cast<double>(word & ~(std::uint64_t{1} << 63)) <= most;
    return std::bit_cast<double>(word & (std::uint64_t{0} - static_cast<std::uint64_t>(good)));
  }
};

/// A code whose decoded value is the code.
template <int Bits>
struct PlainCode {
  static constexpr int bits = Bits;
  using Scale = float;
  TERSE_HD static float value(std::uint32_t code, float) { return static_cast<float>(code); }
};

/// A sink that packs the codes of the values f(piece, i).
template <class Grid, bool Stochastic>
struct GridCodes {
  Grid grid;
  Codes<Grid::bits, Stochastic, float> codes;
  index_t offset;  // the piece's offset in the arena
  std::uint64_t sum = 0;
  std::uint32_t bad = 0;
  alignas(64) float x[lanes] = {};

  GridCodes(Grid grid_, std::byte* wire, Draw draw, index_t offset_)
      : grid(grid_), codes(0, wire, draw), offset(offset_) {}

  struct Own {};
  static Own own() { return {}; }
  void prepare(index_t first) { codes.prepare(first); }
  template <class F>
  TERSE_INLINE void operator()(Own, int l, F& f, const Piece& piece, index_t i, bool) {
    x[l] = f(piece, i);
  }
  void flush(index_t b, int count) {
    std::fill(x + count, x + lanes, 0.0F);
    opaque(x);
    alignas(64) std::uint64_t z[lanes];
    std::uint64_t wrong = 0;
    TERSE_LANES
    for (int l = 0; l < lanes; ++l) {
      bool good;
      z[l] = Grid::modulo(grid.coordinate(x[l], codes.random[l], good));
      wrong |= static_cast<std::uint64_t>(!good);
    }
    opaque(z);
    bad |= static_cast<std::uint32_t>(wrong);
    using Element = CodeElement<Grid::bits>;
    for (int l = 0; l < lanes; ++l)
      codes.code[l] = static_cast<Element>(z[l] & ((std::uint64_t{1} << Grid::bits) - 1));
    codes.flush(b, count);
    sum += block_checksum(offset + b, z);
  }
};

/// Several packets over one range, numbered from `first` on: use(piece, i, value, number, weight).
struct KeyedPackets {
  const std::byte* sections[most_packets] = {};
  float weights[most_packets] = {};
  int count = 0, first = 0;
};

/// The use of values that are only verified.
struct NoUse {};

/// A sink that decodes codes with the keys f(piece, i) and calls use(piece, i, value) for each value.
template <class Grid, class Use>
struct GridValues {
  Grid grid;
  Use use;
  const Piece& piece;
  std::uint64_t sum = 0;
  std::uint64_t bad = 0;
  alignas(64) float key[lanes] = {};
  alignas(64) float code[lanes] = {};

  GridValues(Grid grid_, Use use_, const Piece& piece_) : grid(grid_), use(use_), piece(piece_) {}

  struct Own {};
  static Own own() { return {}; }
  void prepare(index_t) {}
  template <class F>
  TERSE_INLINE void operator()(Own, int l, F& f, const Piece& in, index_t i, bool, float sent) {
    key[l] = f(in, i);
    code[l] = sent;
  }
  TERSE_FLATTEN void flush(index_t b, int count) {
    // Bits after a piece's last element are ignored.
    std::fill(key + count, key + lanes, 0.0F);
    std::fill(code + count, code + lanes, 0.0F);
    opaque(key);
    opaque(code);
    alignas(64) std::uint64_t z[lanes];
    alignas(64) float value[lanes];
    std::uint64_t wrong = 0;
    TERSE_LANES
    for (int l = 0; l < lanes; ++l) {
      bool good;
      const double nearest = grid.coordinate_near(key[l], static_cast<double>(code[l]), good);
      z[l] = Grid::modulo(nearest);
      if constexpr (!std::is_same_v<Use, NoUse>) value[l] = grid.value(nearest);
      wrong |= static_cast<std::uint64_t>(!good);
    }
    opaque(z);
    bad |= wrong;
    sum += block_checksum(piece.offset + b, z);
    if constexpr (!std::is_same_v<Use, NoUse>) {
      opaque(value);
      const index_t first = piece.offset + b;
      if (count == lanes) TERSE_LANES
      for (int l = 0; l < lanes; ++l) use(piece, first + l, value[l]);
      else for (int l = 0; l < count; ++l) use(piece, first + l, value[l]);
    }
  }
};

/// Returns the bytes of the checksums, which precede the codes.
inline index_t checksum_bytes(const Range& range) { return 8 * Units{checked_elements}.in_range(range); }

template <class Grid>
index_t keyed_bytes(const Range& range) {
  index_t bytes = checksum_bytes(range);
  for (const Piece& piece : range.pieces()) bytes += code_bytes<Grid::bits>(piece.count);
  return bytes;
}

/// Writes checksums and codes of message(piece, i); sets `bad` to 1 if a value has no coordinate.
template <int Bits, class Rounding, class Message>
void encode_keyed(executor::host, const Range& range, Grid<Bits, Rounding> grid, Message message,
                  std::byte* section, Draw draw, std::uint32_t& bad) {
  std::byte *checks = section, *wire = section + checksum_bytes(range);
  for (const Piece& piece : range.pieces()) {
    for (index_t begin = 0; begin < piece.count; begin += checked_elements) {
      GridCodes<Grid<Bits, Rounding>, Rounding::stochastic> sink(grid, wire, draw, piece.offset);
      sweep(piece, begin, std::min(begin + checked_elements, piece.count), NoMask{}, Cursor<NoPackets>({}),
            message, sink);
      std::memcpy(checks, &sink.sum, sizeof sink.sum);
      checks += sizeof sink.sum;
      bad |= sink.bad;
    }
    wire += code_bytes<Bits>(piece.count);
  }
}

/// Decodes every code with key(piece, i) and passes the values to `use`. Returns false if a checksum or a key was
/// wrong; with NoUse it stops there.
template <int Bits, class Rounding, class Key, class Use>
bool decode_keyed(executor::host, const Range& range, Grid<Bits, Rounding> grid, const std::byte* section,
                  Key key, Use use) {
  using Incoming = Packets<PlainCode<Bits>>;
  const std::byte* checks = section;
  const typename Incoming::Source source{section + checksum_bytes(range)};
  Cursor<Incoming> cursor({&source, 1, {}});
  bool right = true;
  for (const Piece& piece : range.pieces()) {
    for (index_t begin = 0; begin < piece.count; begin += checked_elements) {
      enter(use, piece);
      GridValues<Grid<Bits, Rounding>, Use> sink(grid, use, piece);
      sweep(piece, begin, std::min(begin + checked_elements, piece.count), NoMask{}, cursor, key, sink);
      std::uint64_t sent;
      std::memcpy(&sent, checks, sizeof sent);
      checks += sizeof sent;
      right = right && sink.bad == 0 && sink.sum == sent;
      if (std::is_same_v<Use, NoUse> && !right) return false;
    }
    cursor.next_piece(piece.count);
  }
  return right;
}
/// Does the same with a grid executor's signature: sets `wrong` to 1 instead of returning false.
template <int Bits, class Rounding, class Key, class Use>
void decode_keyed(executor::host ex, const Range& range, const Grid<Bits, Rounding>& grid,
                  const std::byte* section, Key key, Use use, std::uint32_t& wrong) {
  if (!decode_keyed(ex, range, grid, section, key, use)) wrong = 1;
}

inline void check_grid_parameter(const char* name, float value) {
  // NaN fails the comparison.
  if (!(value > 0) || !is_finite(value))
    throw usage_error(std::string(name) + " must be positive and at most 2^63, not " + std::to_string(value));
}

}  // namespace detail

TERSE_NUMERICS_END

}  // namespace terse
