// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/damage.hpp"

// Incoming data of the host's verbs: packets, decoded block by block of 64 lanes.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// Hides an array of lanes from the optimizer. Otherwise clang forwards lane 0 from the loop that wrote it to the
/// loop that reads it, peels that lane off and does not vectorize the others.
template <class Array>
inline void opaque(Array& array) {
  asm("" : "+m"(array));  // NOLINT: no instruction
}

/// A position in the packets that moves with the verb: pieces in order, and units in order within them.
template <class Incoming>
struct Cursor;

template <>
struct Cursor<NoPackets> {
  static constexpr int streams = 0;
  explicit Cursor(NoPackets) {}
  /// Returns the units by which a verb without units of its own walks; by default whole pieces.
  static Units units() { return {}; }
  void next_piece(index_t) {}
  void next_units(index_t) {}
};

template <class Code>
struct Cursor<Packets<Code>> {
  static constexpr int streams = 1;
  explicit Cursor(Packets<Code> given) : packets(given) {}
  Units units() const { return {packets.units.whole ? 0 : packets.units.size, false}; }
  /// Moves past the finished piece of `count` elements.
  void next_piece(index_t count) { offset += code_bytes<Code::bits>(count); }
  void next_units(index_t count) { unit += packets.units.whole ? 0 : count; }

  /// Computes sum[l] for the block of `count` lanes that starts `begin` elements into the piece, at the given arena
  /// index.
  TERSE_INLINE void load(index_t, index_t begin, int count, float (&sum)[lanes]) const {
    add_all(begin, count, sum);
  }
  /// Returns the sums of a whole block: `sum`, or, for a single packet of floats with weight 1, its values in place.
  TERSE_INLINE const float* load_whole(index_t begin, float (&sum)[lanes]) const {
    if (Code::bits == 32 && packets.count == 1 && packets.sources[0].weight == 1)
      return reinterpret_cast<const float*>(packets.sources[0].codes + offset) + begin;
    add_all(begin, lanes, sum);
    return sum;
  }
  /// Checks whether `count` elements from `begin` on, whole blocks, are finite in all packets. If they are not, each
  /// block must be checked.
  bool is_sound(index_t begin, index_t count) const {
    bool sound = true;
    for (int k = 0; k < packets.count; ++k)
      if constexpr (Code::bits == 32)
        sound = sound &&
                all_finite(reinterpret_cast<const float*>(packets.sources[k].codes + offset) + begin, count);
      else if constexpr (std::is_same_v<typename Code::Scale, float>)
        sound = sound && is_finite(scale_of(packets.sources[k]));
      else
        sound = sound && all_codes_finite(k, begin, count);
    return sound;
  }
  TERSE_COLD TERSE_NO_INLINE void judge(index_t begin, int count, float* sum) const {
    detail::judge(packets, sum, count, [&](int k, int l) { return value(k, begin + l); });
  }

  Packets<Code> packets;
  index_t offset = 0;
  index_t unit = 0;

 private:
  using Element = CodeElement<Code::bits>;

  TERSE_INLINE void add_all(index_t begin, int count, float (&sum)[lanes]) const {
    for (int k = 0; k < packets.count; ++k) {
      const auto& source = packets.sources[k];
      const typename Code::Scale scale = scale_of(source);
      if constexpr (Code::bits < 8) {
        alignas(64) std::uint8_t code[lanes];
        unpack_planes(source.codes + offset + begin / 8 * Code::bits, code);
        opaque(code);
        // Computes all 64 lanes for any count, since the piece's last block is padded on the wire.
        add(k, sum, lanes, source.weight, scale, code);
      } else {
        const Element* code = reinterpret_cast<const Element*>(source.codes + offset) + begin;
        if (count == lanes)
          add(k, sum, lanes, source.weight, scale, code);
        else
          add(k, sum, count, source.weight, scale, code);
      }
      opaque(sum);
    }
  }
  typename Code::Scale scale_of(const typename Packets<Code>::Source& source) const {
    return source.scales == nullptr ? typename Code::Scale{} : source.scales[unit];
  }
  bool all_codes_finite(int k, index_t begin, index_t count) const {
    std::uint32_t beyond = 0;
    for (index_t i = begin; i < begin + count; ++i)
      beyond |= static_cast<std::uint32_t>(!is_finite(value(k, i)));
    return beyond == 0;
  }
  /// Returns the value of one element of the piece.
  float value(int k, index_t element) const {
    const auto& source = packets.sources[k];
    std::uint32_t code = 0;
    if constexpr (Code::bits < 8) {
      alignas(64) std::uint8_t codes[lanes];
      unpack_planes(source.codes + offset + element / lanes * lanes / 8 * Code::bits, codes);
      code = codes[element % lanes];
    } else {
      code = reinterpret_cast<const Element*>(source.codes + offset)[element];
    }
    return Code::value(code, scale_of(source));
  }

  static void unpack_planes(const std::byte* planes, std::uint8_t* code) {
    std::uint64_t word;
    std::memcpy(&word, planes, sizeof word);
    spread_bits(word, code);
    for (int bit = 1; bit < Code::bits; ++bit) {
      alignas(64) std::uint8_t plane[lanes];
      std::memcpy(&word, planes + 8 * bit, sizeof word);
      spread_bits(word, plane);
      for (int l = 0; l < lanes; ++l) code[l] = static_cast<std::uint8_t>(code[l] | plane[l] << bit);
    }
  }

  static void add(int k, float* sum, int count, float weight, typename Code::Scale scale,
                  const Element* code) {
    if (k == 0) TERSE_LANES
    for (int l = 0; l < count; ++l) sum[l] = weight * Code::value(code[l], scale);
    else TERSE_LANES
    for (int l = 0; l < count; ++l) sum[l] += weight * Code::value(code[l], scale);
  }
};

template <class Code>
struct Cursor<Differences<Code>> {
  static constexpr int streams = 2;
  explicit Cursor(Differences<Code> given) : packets(given.packets) {}
  static Units units() { return {}; }
  void next_piece(index_t count) { offset += code_bytes<Code::bits>(count); }
  void next_units(index_t) {}

  /// Computes own[l] and difference[l] for the block of `count` lanes that starts `begin` elements into the piece.
  TERSE_INLINE void load(index_t, index_t begin, int count, float (&own)[lanes],
                         float (&difference)[lanes]) const {
    if (count == lanes)
      load_lanes(begin, lanes, own, difference);
    else
      load_lanes(begin, count, own, difference);
    opaque(own);
    opaque(difference);
  }
  bool is_sound(index_t begin, index_t count) const {
    bool sound = true;
    for (int k = 0; k < packets.count; ++k) sound = sound && all_finite(values(k, begin), count);
    return sound;
  }
  TERSE_COLD TERSE_NO_INLINE void judge(index_t begin, int count, const float*, float* difference) const {
    detail::judge(packets, difference, count, [&](int k, int l) { return values(k, begin)[l]; });
  }

  Packets<Code> packets;
  index_t offset = 0;

 private:
  const float* values(int k, index_t begin) const {
    return reinterpret_cast<const float*>(packets.sources[k].codes + offset) + begin;
  }
  TERSE_INLINE void load_lanes(index_t begin, int count, float* own, float* difference) const {
    const float* mine = values(0, begin);
    TERSE_LANES
    for (int l = 0; l < count; ++l) own[l] = mine[l];
    TERSE_LANES
    for (int l = 0; l < count; ++l) difference[l] = 0;
    for (int k = 1; k < packets.count; ++k) {
      const float* theirs = values(k, begin);
      const float weight = packets.sources[k].weight;
      TERSE_LANES
      for (int l = 0; l < count; ++l) difference[l] += weight * (theirs[l] - mine[l]);
    }
  }
};

}  // namespace detail

TERSE_NUMERICS_END
}  // namespace terse
