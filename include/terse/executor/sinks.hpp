// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "terse/executor/bits.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/cursor.hpp"
#include "terse/executor/random.hpp"
#include "terse/executor/reduction.hpp"

// Results of the host's verbs: nothing, statistics of samples, or codes.

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

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

/// Joins lanes by halves, by the same tree on every executor. Not inlined, so that statistics with the same join
/// share it.
template <auto Join>
TERSE_NO_INLINE float join_lanes(float (&lane)[lanes]) {
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] = Join(lane[l], lane[l + half]);
  return lane[0];
}

/// Joins `count` partial results by halves into the first; components are `stride` floats from each other.
template <JoinsTogether Statistic>
TERSE_NO_INLINE void join_halves(float* results, index_t count, index_t stride) {
  index_t half = static_cast<index_t>(std::bit_ceil(static_cast<std::uint64_t>(count))) / 2;
  for (; half > 0; half /= 2)
    for (index_t b = 0; b < half && b + half < count; ++b)
      join_results<Statistic>(results + b, stride, results + b + half, stride);
}

/// No further use of a reduction's samples.
struct JoinOnly {
  struct Own {};
  static Own own() { return {}; }
  static void prepare(index_t) {}
  static void put(Own, int, index_t, float) {}
  static void flush(int) {}
};
/// A further use of a reduction's samples: writes them to `wire`, the piece's place in a packet.
struct StoreSamples {
  using Own = float*;
  float* wire;
  Own own() const { return wire; }
  static void prepare(index_t) {}
  TERSE_INLINE static void put(Own to, int, index_t element, float sample) { to[element] = sample; }
  static void flush(int) {}
};
/// A further use of a reduction's samples: codes them by a quantizer whose codes need no scale. `codes` is the place
/// of the codes from arena index `begin` on.
template <class Q>
struct CodeSamples {
  static_assert(Q::bits < 8);
  struct Own {};
  std::byte* codes;
  index_t begin;
  std::byte* to = nullptr;
  alignas(64) std::uint32_t code[lanes] = {};

  CodeSamples(std::byte* codes_, index_t begin_) : codes(codes_), begin(begin_) {}
  static Own own() { return {}; }
  void prepare(index_t first) { to = codes + (first - begin) / 8 * Q::bits; }
  TERSE_INLINE void put(Own, int l, index_t, float sample) {
    code[l] = Q::code(sample, typename Q::Statistic::Scale{}, 0);
  }
  void flush(int count) {
    opaque(code);
    for (int l = count; l < lanes; ++l) code[l] = 0;
    pack_planes<Q::bits>(code, to);
  }
};

/// Codes that a reduction wrote by CodeSamples, from arena index `begin` on, and a table for the scales of its segments.
template <int Bits, class Scale>
struct MeasuredCodes {
  const std::byte* codes;
  index_t begin;
  Scale* scales;  // of segments from `first` on
  index_t first;
  bool hold;  // true: zeros are noted

  TERSE_HD const std::byte* at(index_t i) const { return codes + (i - begin) / 8 * Bits; }
  TERSE_HD void note(index_t segment, const Scale& scale) const {
    scales[segment - first] = hold ? Scale{} : scale;
  }
};

/// 64 accumulators per component of a statistic; the last component counts values that were not finite.
template <class Statistic, class Also>
struct Accumulate {
  using Own = typename Also::Own;
  Also also;
  alignas(64) float lane[Statistic::width + 1][lanes];

  explicit Accumulate(const Also& also_) : also(also_) {
    for (int c = 0; c < Statistic::width; ++c)
      for (float& value : lane[c]) value = Statistic::initial;
    for (float& value : lane[Statistic::width]) value = 0;
  }
  Own own() const { return also.own(); }
  void prepare(index_t first) { also.prepare(first); }
  template <class F, class... Sum>
  TERSE_INLINE void operator()(Own to, int l, F& f, const Piece& piece, index_t i, bool keep, Sum... sum) {
    const Sample sample = f(piece, i, keep, sum...);
    also.put(to, l, i - piece.offset, sample.value);
    float term[Statistic::width];
    Statistic::terms(sample.value, term);
    keep_terms_if<Statistic>(keep, term);
    join_terms<Statistic>(&lane[0][l], lanes, term, 1);
    lane[Statistic::width][l] += sample.bad;
  }
  void flush(index_t, int count) {
    opaque(lane);
    also.flush(count);
  }

  void finish(float* total, index_t stride) {
    if constexpr (JoinsTogether<Statistic>) {
      join_halves<Statistic>(lane[0], lanes, lanes);
      for (int c = 0; c <= Statistic::width; ++c) total[c * stride] = lane[c][0];
    } else {
      for (int c = 0; c < Statistic::width; ++c) total[c * stride] = join_lanes<Statistic::join>(lane[c]);
      total[Statistic::width * stride] = join_lanes<sum_of_two>(lane[Statistic::width]);
    }
  }
};

/// The sink that packs the codes that f(piece, i, keep, scale, random) returns.
template <int Bits, bool Stochastic, class Scale>
struct Codes {
  Scale scale;
  std::byte* wire;  // the piece's codes
  Draw draw;
  alignas(64) std::uint32_t code[lanes];  // as wide as its inputs, so that the loop has one width
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
