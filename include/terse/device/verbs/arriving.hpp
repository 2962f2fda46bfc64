// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "terse/core/error.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/quads.hpp"

// The incoming packets of a verb of a grid executor, as a kernel argument.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

inline void check_packets(int count) {
  if (count > most_packets)
    throw usage_error("a kernel takes in up to " + std::to_string(most_packets) + " packets at once, not " +
                      std::to_string(count) + "; use a topology with fewer neighbours, such as Ring");
}

/// Incoming packets, as a kernel argument.
template <class Incoming>
struct Arriving;

template <>
struct Arriving<NoPackets> {
  static constexpr int bits = 0;
  Arriving() = default;
  explicit Arriving(NoPackets) {}
  static Units units() { return {}; }
  template <class F>
  TERSE_HD auto call(F& f, const Tile& tile, index_t b, int lane, bool keep) const {
    return f(tile.piece, tile.piece.offset + b + lane, keep);
  }
  template <int Rows>
  struct Rowwise {
    TERSE_HD Rowwise(const Arriving&, const Tile&, index_t, int) {}
    TERSE_HD static constexpr bool damaged() { return false; }
    template <class F>
    TERSE_HD auto call(F& bound, const Tile& tile, int, int j, bool keep) const {
      return bound(tile.piece, j, keep);
    }
  };
};

/// All packets for each tile or, with `Each`, one packet.
template <class Code, bool Each>
struct ArrivingPackets {
  static constexpr int bits = Code::bits;
  using Element = CodeElement<Code::bits>;
  typename Packets<Code>::Source sources[most_packets];
  int count;
  bool whole;
  index_t size;
  std::uint64_t* damage;

  explicit ArrivingPackets(Packets<Code> packets)
      : count(packets.count), whole(packets.units.whole), size(packets.units.size), damage(packets.damage) {
    check_packets(count);
    std::copy_n(packets.sources, count, sources);
  }
  Units units() const { return {whole ? 0 : size, false}; }

  /// The sums of `Rows` rows from b on, of four neighbouring lanes.
  template <int Rows>
  struct Rowwise {
    float sum[std::size_t{Rows}][quad];

    TERSE_HD Rowwise(const ArrivingPackets& arriving, const Tile& tile, index_t b, int lane) {
      const auto each = [&](int k, auto use) {
        const auto& source = arriving.sources[k];
        const auto scale = arriving.scale_of(source, tile);
        const std::byte* const from =
            source.codes + tile.coming + static_cast<std::uint64_t>(b) / 8 * Code::bits;
        std::uint32_t codes[std::size_t{Rows}][quad];
        TERSE_UNROLL
        for (int r = 0; r < Rows; ++r) four_codes(from + r * (lanes / 8 * Code::bits), lane, codes[r]);
        TERSE_UNROLL
        for (int r = 0; r < Rows; ++r) TERSE_UNROLL
        for (int j = 0; j < quad; ++j)
          use(sum[r][j], source.weight * Code::value(static_cast<Element>(codes[r][j]), scale));
      };
      const int first = arriving.first(tile), end = arriving.end(tile);
      if (first < end)
        each(first, [](float& total, float term) { total = term; });
      else
        std::memset(sum, 0, sizeof sum);
      TERSE_ROLLED
      for (int k = first + 1; k < end; ++k) each(k, [](float& total, float term) { total += term; });
      if (arriving.damage == nullptr) return;
      const float limit = largest_sum(end - first);
      for (const auto& row : sum)
        for (const float one : row) damaged_ |= !(magnitude(one) <= limit);
    }
    /// Checks whether one of the sums may have to count as 0: these rows are processed element by element.
    TERSE_HD bool damaged() const { return damaged_; }
    /// Calls f, bound to row r's elements, for lane j of the four.
    template <class F>
    TERSE_HD auto call(F& bound, const Tile& tile, int r, int j, bool keep) const {
      return bound(tile.piece, j, keep, sum[r][j]);
    }

   private:
    bool damaged_ = false;
  };

  /// Calls f for the element `b + lane` elements into the tile's piece, with the sum over the packets.
  template <class F>
  TERSE_HD auto call(F& f, const Tile& tile, index_t b, int lane, bool keep) const {
    return f(tile.piece, tile.piece.offset + b + lane, keep, sum(tile, b, lane));
  }
  TERSE_HD float sum(const Tile& tile, index_t b, int lane) const {
    const int first_source = first(tile), end_source = end(tile);
    float sum = 0;
    TERSE_ROLLED
    for (int k = first_source; k < end_source; ++k) {
      const float term = sources[k].weight * value(k, tile, b, lane);
      sum = k == first_source ? term : sum + term;
    }
    if (damage == nullptr || magnitude(sum) <= largest_sum(end_source - first_source)) return sum;
    TERSE_ROLLED
    for (int k = first_source; k < end_source; ++k)
      if (!is_finite(value(k, tile, b, lane))) {
        atomic_lower(damage, sources[k].origin);
        sum = 0;
      }
    return sum;
  }

 private:
  TERSE_HD int first(const Tile& tile) const { return Each ? tile.packet : 0; }
  TERSE_HD int end(const Tile& tile) const { return Each ? tile.packet + 1 : count; }
  TERSE_HD float value(int k, const Tile& tile, index_t b, int lane) const {
    const auto& source = sources[k];
    return Code::value(code(source.codes + tile.coming, b, lane), scale_of(source, tile));
  }
  TERSE_HD typename Code::Scale scale_of(const typename Packets<Code>::Source& source,
                                         const Tile& tile) const {
    return source.scales == nullptr ? typename Code::Scale{} : source.scales[whole ? 0 : tile.unit];
  }
  /// Reads the codes of `lane`, a multiple of 4, and of the next three lanes in its row. Packets are aligned to 8
  /// bytes.
  TERSE_HD static void four_codes(const std::byte* row, int lane, std::uint32_t (&four)[quad]) {
    if constexpr (Code::bits < 8) {
      const std::byte* const planes = row + lane / 32 * 4;
      for (std::uint32_t& code : four) code = 0;
      for (int bit = 0; bit < Code::bits; ++bit) {
        const std::uint32_t plane = load_aligned<std::uint32_t>(planes + 8 * bit) >> lane % 32;
        for (int j = 0; j < quad; ++j) four[j] |= (plane >> j & 1U) << bit;
      }
    } else {
      using Word = std::conditional_t<Code::bits == 8, std::uint32_t, std::uint64_t>;
      constexpr int held = static_cast<int>(8 * sizeof(Word)) / Code::bits;
      const std::byte* const from = row + lane * static_cast<int>(sizeof(Element));
      for (int j = 0; j < quad; ++j)
        four[j] = static_cast<Element>(load_aligned<Word>(from + j / held * static_cast<int>(sizeof(Word))) >>
                                       j % held * Code::bits);
    }
  }
  TERSE_HD static Element code(const std::byte* codes, index_t b, int lane) {
    if constexpr (Code::bits < 8) {
      std::uint32_t code = 0;
      const std::byte* planes = codes + b / 8 * Code::bits + lane / 32 * 4;
      for (int bit = 0; bit < Code::bits; ++bit)
        code |= (load_aligned<std::uint32_t>(planes + 8 * bit) >> (lane % 32) & 1U) << bit;
      return static_cast<Element>(code);
    } else {
      return load_aligned<Element>(codes + (b + lane) * static_cast<index_t>(sizeof(Element)));
    }
  }
};

template <class Code>
struct Arriving<Packets<Code>> : ArrivingPackets<Code, false> {
  using ArrivingPackets<Code, false>::ArrivingPackets;
};
template <class Code>
struct Arriving<OneEach<Code>> : ArrivingPackets<Code, true> {
  explicit Arriving(OneEach<Code> each) : ArrivingPackets<Code, true>(each.packets) {}
};

template <class Code>
struct Arriving<Differences<Code>> {
  static constexpr int bits = Code::bits;
  const std::byte* values[most_packets];
  float weights[most_packets];
  std::uint32_t origins[most_packets];
  int count;
  std::uint64_t* damage;

  explicit Arriving(Differences<Code> given) : count(given.packets.count), damage(given.packets.damage) {
    check_packets(count);
    for (int k = 0; k < count; ++k) {
      values[k] = given.packets.sources[k].codes;
      weights[k] = given.packets.sources[k].weight;
      origins[k] = given.packets.sources[k].origin;
    }
  }
  static Units units() { return {}; }

  /// Own values and differences of `Rows` rows from b on, of four neighbouring lanes.
  template <int Rows>
  struct Rowwise {
    float own[std::size_t{Rows}][quad], difference[std::size_t{Rows}][quad];

    TERSE_HD Rowwise(const Arriving& arriving, const Tile& tile, index_t b, int lane) {
      const index_t place = tile.coming + (b + lane) * 4;
      read(arriving.values[0] + place, own);
      std::memset(difference, 0, sizeof difference);
      TERSE_ROLLED
      for (int k = 1; k < arriving.count; ++k) {
        float theirs[std::size_t{Rows}][quad];
        read(arriving.values[k] + place, theirs);
        TERSE_UNROLL
        for (int r = 0; r < Rows; ++r) TERSE_UNROLL
        for (int j = 0; j < quad; ++j) difference[r][j] += arriving.weights[k] * (theirs[r][j] - own[r][j]);
      }
      if (arriving.damage == nullptr) return;
      const float limit = largest_sum(arriving.count);
      for (const auto& row : difference)
        for (const float one : row) damaged_ |= !(magnitude(one) <= limit);
    }
    /// See ArrivingPackets.
    TERSE_HD bool damaged() const { return damaged_; }
    template <class F>
    TERSE_HD auto call(F& bound, const Tile& tile, int r, int j, bool keep) const {
      return bound(tile.piece, j, keep, own[r][j], difference[r][j]);
    }

   private:
    /// Reads two values at a time: packets are aligned to 8 bytes.
    TERSE_HD static void read(const std::byte* from, float (&rows)[std::size_t{Rows}][quad]) {
      TERSE_UNROLL
      for (int r = 0; r < Rows; ++r) TERSE_UNROLL
      for (int j = 0; j < quad; j += 2) {
        const auto two = load_aligned<std::uint64_t>(from + (r * lanes + j) * 4);
        rows[r][j] = std::bit_cast<float>(static_cast<std::uint32_t>(two));
        rows[r][j + 1] = std::bit_cast<float>(static_cast<std::uint32_t>(two >> 32));
      }
    }
    bool damaged_ = false;
  };

  template <class F>
  TERSE_HD auto call(F& f, const Tile& tile, index_t b, int lane, bool keep) const {
    const index_t place = tile.coming + (b + lane) * 4;
    const float own = load_aligned<float>(values[0] + place);
    float difference = 0;
    for (int k = 1; k < count; ++k) difference += weights[k] * (load_aligned<float>(values[k] + place) - own);
    if (damage != nullptr && !(magnitude(difference) <= largest_sum(count)))
      for (int k = 0; k < count; ++k)
        if (!is_finite(load_aligned<float>(values[k] + place))) {
          atomic_lower(damage, origins[k]);
          difference = 0;
        }
    return f(tile.piece, tile.piece.offset + b + lane, keep, own, difference);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
