// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/ones.hpp"
#include "terse/executor/bits.hpp"
#include "terse/executor/host.hpp"

// Magnitudes on the host: a walk through those that reach a bound, and the k-th largest, found by radix selection.
// They are compared as integers: a float's bits without the sign have the order of the magnitudes.

namespace terse::detail {

/// Counters of one digit, four for each value: neighbours often have the same digit, and an increment would wait for
/// the previous one. The last value stands for elements that don't take part.
inline constexpr int ways = 4;
inline constexpr index_t histogram_size = (2048 + 1) * ways;

inline namespace TERSE_INSTRUCTIONS {

inline std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; }

#if defined(__SSE2__) && !defined(__AVX2__)
/// Returns a vector in which all bits of lane l are set if x[l] has a larger magnitude than `below`.
inline __m128i above(const float* x, __m128i below) {
  const __m128i value = _mm_and_si128(_mm_castps_si128(_mm_loadu_ps(x)), _mm_set1_epi32(0x7FFFFFFF));
  return _mm_cmpgt_epi32(value, below);
}
#endif

/// Returns a word whose bit l is set if the magnitude of x[l] is at least `least`, which is at most 2^31.
inline std::uint64_t at_least(const float* x, std::uint32_t least) {
#if defined(__AVX512BW__)
  const __m512i all = _mm512_set1_epi32(0x7FFFFFFF), bound = _mm512_set1_epi32(static_cast<int>(least));
  std::uint64_t word = 0;
  for (int l = 0; l < lanes; l += 16) {
    const __m512i value = _mm512_and_si512(_mm512_loadu_si512(x + l), all);
    word |= static_cast<std::uint64_t>(_mm512_cmpge_epu32_mask(value, bound)) << l;
  }
  return word;
#elif defined(__AVX2__)
  const __m256i all = _mm256_set1_epi32(0x7FFFFFFF), below = _mm256_set1_epi32(static_cast<int>(least - 1));
  std::uint64_t word = 0;
  for (int l = 0; l < lanes; l += 8) {
    const __m256i value = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + l)), all);
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(value, below)));
    word |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(mask)) << l;
  }
  return word;
#elif defined(__SSE2__)
  const __m128i below = _mm_set1_epi32(static_cast<int>(least - 1));
  std::uint64_t word = 0;
  for (int l = 0; l < lanes; l += 16) {
    const __m128i low = _mm_packs_epi32(above(x + l, below), above(x + l + 4, below));
    const __m128i high = _mm_packs_epi32(above(x + l + 8, below), above(x + l + 12, below));
    const int mask = _mm_movemask_epi8(_mm_packs_epi16(low, high));
    word |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(mask)) << l;
  }
  return word;
#else
  std::uint64_t word = 0;
  for (int l = 0; l < lanes; ++l) word |= static_cast<std::uint64_t>(magnitude_bits(x[l]) >= least) << l;
  return word;
#endif
}

/// Returns that word for the first `count` lanes; later lanes are not read, and their bits are 0.
TERSE_INLINE std::uint64_t at_least(const float* x, index_t count, std::uint32_t least) {
  if (count >= lanes) return at_least(x, least);
  std::uint64_t word = 0;
  for (int l = 0; l < count; ++l) word |= static_cast<std::uint64_t>(magnitude_bits(x[l]) >= least) << l;
  return word;
}

/// Calls sink(i, x[i]), in order, for elements whose magnitude is at least `sink.least()`, which is read again every 64
/// elements, until the sink returns false. One pass.
template <class Sink>
TERSE_INLINE void walk(const float* x, index_t count, Sink& sink) {
  for (index_t b = 0; b < count; b += lanes)
    for (std::uint64_t word = at_least(x + b, count - b, sink.least()); word != 0; word &= word - 1) {
      const index_t i = b + first_one_in(word);
      if (!sink(i, x[i])) return;
    }
}

/// A sink that records up to `room` positions and, unless `values` is null, the values there.
struct Note {
  std::uint32_t threshold;
  index_t room;
  std::uint32_t* positions;
  float* values = nullptr;
  index_t found = 0;

  std::uint32_t least() const { return threshold; }
  TERSE_INLINE bool operator()(index_t i, float value) {
    positions[found] = static_cast<std::uint32_t>(i);
    if (values != nullptr) values[found] = value;
    return ++found < room;
  }
};

/// The k-th largest magnitude, and the number of elements with it that belong to the k largest.
struct Cut {
  std::uint32_t magnitude;
  index_t ties;
};

/// A sink that takes all elements above the cut and the first ties, in total `left`. `names` are the elements'
/// positions. If it is null, each element's index is its position.
struct Take {
  Cut cut;
  index_t left;
  const std::uint32_t* names;
  std::uint32_t* positions;

  std::uint32_t least() const { return cut.magnitude + (cut.ties == 0 ? 1 : 0); }
  TERSE_INLINE bool operator()(index_t i, float value) {
    if (magnitude_bits(value) == cut.magnitude) {
      if (cut.ties == 0) return true;
      --cut.ties;
    }
    *positions++ = names != nullptr ? names[i] : static_cast<std::uint32_t>(i);
    return --left > 0;
  }
};

/// Counts the magnitudes in [least, limit) by their bits from `shift` on. Others may be counted under the digit after
/// the last.
inline void count_digits(const float* x, index_t count, std::uint32_t least, std::uint32_t limit, int shift,
                         std::uint32_t* histogram) {
  const std::uint32_t outside = (limit - least) >> shift;
  for (index_t b = 0; b < count; b += lanes) {
    std::uint64_t word = at_least(x + b, count - b, least) & ~at_least(x + b, count - b, limit);
    if (count - b >= lanes && ones_in(word) > lanes / 4) {
      // Without a branch for each element; magnitudes below the range wrap to values far above it.
      for (int l = 0; l < lanes; l += ways)
        for (int way = 0; way < ways; ++way) {
          const std::uint32_t digit = (magnitude_bits(x[b + l + way]) - least) >> shift;
          ++histogram[static_cast<index_t>(std::min(digit, outside)) * ways + way];
        }
    } else {
      for (int way = 0; word != 0; word &= word - 1, way = (way + 1) % ways) {
        const std::uint32_t digit = (magnitude_bits(x[b + first_one_in(word)]) - least) >> shift;
        ++histogram[static_cast<index_t>(digit) * ways + way];
      }
    }
  }
}

/// Selects the k-th largest magnitude by its digits of 11, 10 and 10 bits from the top, 1 <= k <= count. Three passes.
inline Cut find_cut(const float* x, index_t count, index_t k, std::uint32_t* histogram) {
  std::uint32_t least = 0, limit = 0x80000000U;
  for (const int shift : {20, 10, 0}) {
    auto bin = static_cast<index_t>((limit - least) >> shift);
    std::fill_n(histogram, (bin + 1) * ways, 0U);
    count_digits(x, count, least, limit, shift, histogram);
    index_t here = 0;
    for (; k > 0; k -= here) {
      --bin;
      here = 0;
      for (int way = 0; way < ways; ++way) here += histogram[bin * ways + way];
    }
    k += here;
    least += static_cast<std::uint32_t>(bin) << shift;
    limit = least + (1U << shift);
  }
  return {least, k};
}

}  // namespace TERSE_INSTRUCTIONS
}  // namespace terse::detail
