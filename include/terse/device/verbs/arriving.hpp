// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "terse/core/error.hpp"
#include "terse/executor/atomic.hpp"
#include "terse/executor/quads.hpp"

// The incoming packets of a verb of a grid executor, as a kernel argument: a list of up to `most`. If `most` is 0, a
// pointer to a list, which the kernel's code takes.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

inline void check_packets(int count) {
  if (count > most_packets)
    throw usage_error("a kernel takes in up to " + std::to_string(most_packets) + " packets at once, not " +
                      std::to_string(count) + "; use a topology with fewer neighbours, such as Ring");
}

template <class Incoming, int most = most_packets>
struct Arriving;

template <int most>
struct Arriving<NoPackets, most> {
  static constexpr int bits = 0, count = 0;
  Arriving() = default;
  explicit Arriving(NoPackets) {}
  TERSE_HD Arriving<NoPackets, 0> view() const { return {}; }
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

/// Packets with a list of their sources, or a pointer to one.
template <class Code, int most>
struct PacketList {
  static constexpr int bits = Code::bits;
  using Source = typename Packets<Code>::Source;
  int count;
  bool whole;
  index_t size;
  std::uint64_t* damage;
  std::conditional_t<most == 0, const Source*, Listed<Source, most>> sources;

  TERSE_HD explicit PacketList(const Packets<Code>& given)
      : count(given.count), whole(given.units.whole), size(given.units.size), damage(given.damage) {
    if constexpr (most == 0) {
      sources = given.sources;
    } else {
#ifndef __CUDA_ARCH__
      check_packets(count);
#endif
      for (int k = 0; k < count; ++k) sources[k] = given.sources[k];
    }
  }
  TERSE_HD Packets<Code> packets() const { return {&sources[0], count, {size, whole}, damage}; }
};

/// All packets for each tile or, with `Each`, one packet.
template <class Code, bool Each, int most>
struct ArrivingPackets : PacketList<Code, most> {
  using Element = CodeElement<Code::bits>;
  using List = PacketList<Code, most>;
  using List::count, List::damage, List::size, List::sources, List::whole;
  using PacketList<Code, most>::PacketList;

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
    /// Checks whether one of the sums may have to count as 0; such rows are processed element by element.
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

template <class Code, int most>
struct Arriving<Packets<Code>, most> : ArrivingPackets<Code, false, most> {
  using ArrivingPackets<Code, false, most>::ArrivingPackets;
  TERSE_HD Arriving<Packets<Code>, 0> view() const { return Arriving<Packets<Code>, 0>(this->packets()); }
};
template <class Code, int most>
struct Arriving<OneEach<Code>, most> : ArrivingPackets<Code, true, most> {
  TERSE_HD explicit Arriving(OneEach<Code> each) : ArrivingPackets<Code, true, most>(each.packets) {}
  TERSE_HD Arriving<OneEach<Code>, 0> view() const {
    return Arriving<OneEach<Code>, 0>(OneEach<Code>{this->packets()});
  }
};

template <class Code, int most>
struct Arriving<Differences<Code>, most> : PacketList<Code, most> {
  using List = PacketList<Code, most>;
  using List::count, List::damage, List::sources;

  TERSE_HD explicit Arriving(Differences<Code> given) : List(given.packets) {}
  TERSE_HD Arriving<Differences<Code>, 0> view() const {
    return Arriving<Differences<Code>, 0>(Differences<Code>{this->packets()});
  }
  static Units units() { return {}; }

  /// Own values and differences of `Rows` rows from b on, of four neighbouring lanes.
  template <int Rows>
  struct Rowwise {
    float own[std::size_t{Rows}][quad], difference[std::size_t{Rows}][quad];

    TERSE_HD Rowwise(const Arriving& arriving, const Tile& tile, index_t b, int lane) {
      const index_t place = tile.coming + (b + lane) * 4;
      read(arriving.sources[0].codes + place, own);
      std::memset(difference, 0, sizeof difference);
      TERSE_ROLLED
      for (int k = 1; k < arriving.count; ++k) {
        float theirs[std::size_t{Rows}][quad];
        read(arriving.sources[k].codes + place, theirs);
        TERSE_UNROLL
        for (int r = 0; r < Rows; ++r) TERSE_UNROLL
        for (int j = 0; j < quad; ++j)
          difference[r][j] += arriving.sources[k].weight * (theirs[r][j] - own[r][j]);
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
    const float own = load_aligned<float>(sources[0].codes + place);
    float difference = 0;
    for (int k = 1; k < count; ++k)
      difference += sources[k].weight * (load_aligned<float>(sources[k].codes + place) - own);
    if (damage != nullptr && !(magnitude(difference) <= largest_sum(count)))
      for (int k = 0; k < count; ++k)
        if (!is_finite(load_aligned<float>(sources[k].codes + place))) {
          atomic_lower(damage, sources[k].origin);
          difference = 0;
        }
    return f(tile.piece, tile.piece.offset + b + lane, keep, own, difference);
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
