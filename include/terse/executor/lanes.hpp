// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/damage.hpp"
#include "terse/executor/random.hpp"

// How the host executor walks: blocks of 64 lanes, what comes in (packets), what goes out (sinks).

namespace terse {

using HostMask = Mask<memory::host>;

TERSE_NUMERICS_BEGIN

namespace detail {

/// Hides an array of lanes from the optimizer for a moment. clang would otherwise forward lane 0 from the
/// loop that wrote it into the loop that reads it, peel that lane off and give up on vectorizing the rest.
template <class Array>
inline void opaque(Array& array) {
  asm("" : "+m"(array));  // NOLINT: no instruction
}

/// Walks through the packets in step with the verb: pieces in order, units in order within them.
template <class Incoming>
struct Cursor;

template <>
struct Cursor<NoPackets> {
  static constexpr int streams = 0;
  explicit Cursor(NoPackets) {}
  /// How a verb without units of its own walks; whole pieces by default.
  static Units units() { return {}; }
  void next_piece(index_t) {}
  void next_unit() {}
};

template <class Code>
struct Cursor<Packets<Code>> {
  static constexpr int streams = 1;
  explicit Cursor(Packets<Code> given) : packets(given) {}
  Units units() const { return {packets.units.whole ? 0 : packets.units.size, false}; }
  /// The piece of `count` elements just done is left behind.
  void next_piece(index_t count) { offset += code_bytes<Code::bits>(count); }
  void next_unit() { unit += packets.units.whole ? 0 : 1; }

  /// sum[l] for the block of `count` lanes that starts `begin` elements into the piece, at the given arena
  /// index.
  TERSE_INLINE void load(index_t, index_t begin, int count, float (&sum)[lanes]) const {
    add_all(begin, count, sum);
  }
  /// The same of a whole block: in `sum`, or, of a single packet of floats, where they are.
  TERSE_INLINE const float* load_whole(index_t begin, float (&sum)[lanes]) const {
    if (Code::bits == 32 && packets.count == 1 && packets.sources[0].weight == 1)
      return reinterpret_cast<const float*>(packets.sources[0].codes + offset) + begin;
    add_all(begin, lanes, sum);
    return sum;
  }
  /// Whether `count` elements from there, whole blocks, are finite in all packets; in others blocks must be judged.
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
        // All 64 lanes, whatever the count: the piece's last block is padded on the wire.
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
  /// Of one element of the piece.
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
  void next_unit() {}

  /// own[l] and difference[l] for the block of `count` lanes that starts `begin` elements into the piece.
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

/// Has `sink` call f(piece, i, keep[, sum]) for each lane of a whole block. Loops with constant bounds, because
/// compilers vectorize those even at -O2.
template <class Own, class F, class Sink, class... Sum>
TERSE_INLINE void run_whole(Own own, const Piece& piece, index_t first, F& f, Sink& sink, const Sum*... sum) {
  TERSE_LANES
  for (int l = 0; l < lanes; ++l) sink(own, l, f, piece, first + l, true, sum[l]...);
}

/// The same for a block in which elements are missing.
template <class Own, class F, class Sink, class... Sum>
TERSE_INLINE void run_part(Own own, const Piece& piece, index_t first, int count, NoMask, F& f, Sink& sink,
                           const Sum*... sum) {
  TERSE_LAST_LANES
  for (int l = 0; l < count; ++l) sink(own, l, f, piece, first + l, true, sum[l]...);
}
/// And masked or missing.
template <class Own, class F, class Sink, class... Sum>
TERSE_INLINE void run_part(Own own, const Piece& piece, index_t first, int count, HostMask mask, F& f,
                           Sink& sink, const Sum*... sum) {
  alignas(64) std::uint8_t keep[lanes];
  spread_bits(mask.word(first), keep);
  opaque(keep);
  if (count == lanes) {
    TERSE_LANES
    for (int l = 0; l < lanes; ++l) sink(own, l, f, piece, first + l, keep[l] != 0, sum[l]...);
  } else {
    TERSE_LAST_LANES
    for (int l = 0; l < count; ++l) sink(own, l, f, piece, first + l, keep[l] != 0, sum[l]...);
  }
}

/// Cursors whose packets may hold what is not finite, see Packets::damage.
template <class C>
concept LooksForDamage = requires(const C& cursor) {
  cursor.is_sound(index_t{}, index_t{});
};
template <class C>
concept ReadsInPlace = requires(const C& cursor, float (&sum)[lanes]) {
  cursor.load_whole(index_t{}, sum);
};

/// run(first, sums) for a block, a `Whole` one or not.
template <class Incoming, class Run, class Whole>
TERSE_INLINE void load_and_run(const Cursor<Incoming>& incoming, index_t first, index_t b, int count,
                               float (&sum)[lanes], const Run& run, Whole) {
  if constexpr (Whole::value && ReadsInPlace<Cursor<Incoming>>) {
    run(first, incoming.load_whole(b, sum));
  } else {
    incoming.load(first, b, count, sum);
    run(first, &sum[0]);
  }
}

/// Up to where the elements from `begin` on need not be judged: to the end, unless damage is looked for.
template <class Incoming>
inline index_t sound_until(const Cursor<Incoming>& incoming, index_t begin, index_t end) {
  if constexpr (LooksForDamage<Cursor<Incoming>>)
    if (incoming.packets.damage != nullptr) {
      const index_t count = std::min(looked_at_together, (end - begin) / lanes * lanes);
      return count > 0 && incoming.is_sound(begin, count) ? begin + count : begin;
    }
  return end;
}

/// Runs the elements [begin, end) of a piece, block by block; `begin` is a multiple of 64.
template <class Masked, class Incoming, class F, class Sink>
TERSE_FLATTEN inline void sweep(const Piece& piece, index_t begin, index_t end, Masked mask,
                                const Cursor<Incoming>& incoming, const F& given, Sink& sink) {
  // A local copy, which compilers take apart. Of an argument, which lies in memory, clang gives up after a hundred uses to
  // prove that no store changes it, and reads its numbers anew in each block.
  F f = given;
  enter(f, piece);
  // A copy that nothing written in the loops can change.
  const auto own = prepared(f, sink.own());
  const auto whole = [&](index_t first, auto... sum) { run_whole(own, piece, first, f, sink, sum...); };
  const auto block = [&](index_t b, int count, auto run) {
    const index_t first = piece.offset + b;
    enter_block(f, first);
    sink.prepare(first);
    if constexpr (Cursor<Incoming>::streams == 0) {
      run(first);
    } else if constexpr (Cursor<Incoming>::streams == 1) {
      alignas(64) float sum[lanes];
      load_and_run(incoming, first, b, count, sum, run,
                   std::is_same<decltype(run), std::remove_const_t<decltype(whole)>>{});
    } else {
      alignas(64) float value[lanes], difference[lanes];
      incoming.load(first, b, count, value, difference);
      run(first, value, difference);
    }
    sink.flush(b, count);
    leave_block(f, first, count);
  };
  for (index_t b = begin; b < end; b += lanes) {
    // In a loop of their own, which calls nothing, constants stay in registers from block to block.
    for (index_t sound = sound_until(incoming, b, end); sound > b; sound = sound_until(incoming, b, end)) {
      for (; sound - b >= lanes && mask.word(piece.offset + b) == ~std::uint64_t{0}; b += lanes)
        block(b, lanes, whole);
      if (b < sound) break;
    }
    if (b == end) break;
    const int count = static_cast<int>(std::min<index_t>(lanes, end - b));
    block(b, count, [&](index_t first, auto... sum) {
      if constexpr (LooksForDamage<Cursor<Incoming>>)
        if (incoming.packets.damage != nullptr) incoming.judge(b, count, sum...);
      run_part(own, piece, first, count, mask, f, sink, sum...);
    });
  }
}

/// The sink of verbs that have no result.
struct CallOnly {
  struct Own {};
  static Own own() { return {}; }
  void prepare(index_t) {}
  template <class F, class... Sum>
  TERSE_INLINE void operator()(Own, int, F& f, const Piece& piece, index_t i, bool keep, Sum... sum) {
    f(piece, i, keep, sum...);
  }
  void flush(index_t, int) {}
};

TERSE_HD inline float sum_of_two(float a, float b) { return a + b; }

/// Joins lanes by halves, the same tree on every executor. Not inlined: statistics that join alike share it.
template <auto Join>
TERSE_NO_INLINE float join_lanes(float (&lane)[lanes]) {
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] = Join(lane[l], lane[l + half]);
  return lane[0];
}

/// 64 accumulators per component of a statistic; the last component counts what was not finite. With Store
/// the samples also go to `wire`, the piece's place in a packet.
template <class Statistic, bool Store>
struct Accumulate {
  using Own = float*;
  float* wire;
  alignas(64) float lane[Statistic::width + 1][lanes];

  explicit Accumulate(float* wire_) : wire(wire_) {
    for (int c = 0; c < Statistic::width; ++c)
      for (float& value : lane[c]) value = Statistic::initial;
    for (float& value : lane[Statistic::width]) value = 0;
  }
  Own own() const { return wire; }
  void prepare(index_t) {}
  template <class F, class... Sum>
  TERSE_INLINE void operator()([[maybe_unused]] Own to, int l, F& f, const Piece& piece, index_t i, bool keep,
                               Sum... sum) {
    const Sample sample = f(piece, i, keep, sum...);
    if constexpr (Store) to[i - piece.offset] = sample.value;
    float term[Statistic::width];
    Statistic::terms(sample.value, term);
    TERSE_UNROLL
    for (int c = 0; c < Statistic::width; ++c)
      lane[c][l] = Statistic::join(lane[c][l], keep_if(keep, term[c], Statistic::initial));
    lane[Statistic::width][l] += sample.bad;
  }
  void flush(index_t, int) { opaque(lane); }

  void finish(float* total, index_t stride) {
    for (int c = 0; c < Statistic::width; ++c) total[c * stride] = join_lanes<Statistic::join>(lane[c]);
    total[Statistic::width * stride] = join_lanes<sum_of_two>(lane[Statistic::width]);
  }
};

/// The sink that packs what f(piece, i, keep, scale, random) returns.
template <int Bits, bool Stochastic, class Scale>
struct Codes {
  Scale scale;
  std::byte* wire;  // of the piece
  Draw draw;
  alignas(64) std::uint32_t code[lanes];  // as wide as what it is made of, so that the loop has one width
  alignas(64) std::uint16_t random[lanes] = {};

  Codes(Scale scale_, std::byte* wire_, Draw draw_) : scale(scale_), wire(wire_), draw(draw_) {}

  Scale own() const { return scale; }
  void prepare(index_t first) {
    if constexpr (Stochastic) {
      random_lanes(draw, static_cast<std::uint64_t>(first / 8), random);
      opaque(random);
    }
  }
  template <class Own, class F>
  TERSE_INLINE void operator()(Own own, int l, F& f, const Piece& piece, index_t i, bool keep) {
    code[l] = f(piece, i, keep, own, random[l]);
  }
  void flush(index_t b, int count) {
    for (int l = count; l < lanes; ++l) code[l] = 0;
    std::byte* to = wire + b / 8 * Bits;
    if constexpr (Bits < 8) {
      pack_planes<Bits>(code, to);
    } else if (count == lanes) {
      narrow(code, reinterpret_cast<Element*>(to));
    } else {
      alignas(64) Element narrowed[lanes];
      narrow(code, narrowed);
      std::memcpy(to, narrowed, static_cast<std::size_t>(code_bytes<Bits>(count)));
    }
  }

 private:
  using Element = CodeElement<Bits>;
};

}  // namespace detail

TERSE_NUMERICS_END
}  // namespace terse
