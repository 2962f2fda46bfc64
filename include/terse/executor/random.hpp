// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "terse/core/draw.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>  // a second less to compile
#endif

namespace terse::detail {

// As with TERSE_INSTRUCTIONS: separate functions for each instruction set. A Counters has `width` 32-bit values in
// 64-bit lanes, whose upper halves are meaningless.
#if defined(__AVX512F__)
inline namespace avx512 {
struct Counters {
  static constexpr int width = 8;
  __m512i v;
  static Counters of(std::uint64_t x) { return {_mm512_set1_epi64(static_cast<long long>(x))}; }
  static Counters from(const std::uint64_t* x) { return {_mm512_loadu_si512(x)}; }
  void to(std::uint64_t* x) const { _mm512_storeu_si512(x, v); }
  Counters times(Counters by) const { return {_mm512_mul_epu32(v, by.v)}; }
  Counters upper() const { return {_mm512_srli_epi64(v, 32)}; }
  Counters operator^(Counters by) const { return {_mm512_xor_si512(v, by.v)}; }
};
#elif defined(__AVX2__)
inline namespace avx2 {
struct Counters {
  static constexpr int width = 4;
  __m256i v;
  static Counters of(std::uint64_t x) { return {_mm256_set1_epi64x(static_cast<long long>(x))}; }
  static Counters from(const std::uint64_t* x) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))};
  }
  void to(std::uint64_t* x) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), v); }
  Counters times(Counters by) const { return {_mm256_mul_epu32(v, by.v)}; }
  Counters upper() const { return {_mm256_srli_epi64(v, 32)}; }
  Counters operator^(Counters by) const { return {_mm256_xor_si256(v, by.v)}; }
};
#elif defined(__SSE2__)
inline namespace sse2 {
struct Counters {
  static constexpr int width = 2;
  __m128i v;
  static Counters of(std::uint64_t x) { return {_mm_set1_epi64x(static_cast<long long>(x))}; }
  static Counters from(const std::uint64_t* x) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))};
  }
  void to(std::uint64_t* x) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(x), v); }
  Counters times(Counters by) const { return {_mm_mul_epu32(v, by.v)}; }
  Counters upper() const { return {_mm_srli_epi64(v, 32)}; }
  Counters operator^(Counters by) const { return {_mm_xor_si128(v, by.v)}; }
};
#else
inline namespace portable {
struct Counters {
  static constexpr int width = 1;
  std::uint64_t v;
  static Counters of(std::uint64_t x) { return {x}; }
  static Counters from(const std::uint64_t* x) { return {*x}; }
  void to(std::uint64_t* x) const { *x = v; }
  Counters times(Counters by) const { return {(v & 0xFFFFFFFF) * (by.v & 0xFFFFFFFF)}; }
  Counters upper() const { return {v >> 32}; }
  Counters operator^(Counters by) const { return {v ^ by.v}; }
};
#endif

/// Computes `draw.block(first)` to `draw.block(first + 7)`, one after the other: 16 random bits for each of 64
/// elements.
inline void random_lanes(const Draw& draw, std::uint64_t first, std::uint16_t (&random)[64]) {
  constexpr int width = Counters::width, vectors = 8 / width;
  const Draw::Stream stream = draw.stream();
  const Counters by_a = Counters::of(0xD2511F53), by_c = Counters::of(0xCD9E8D57);
  Counters a[vectors], b[vectors], c[vectors], d[vectors];
  for (int k = 0; k < vectors; ++k) {
    std::uint64_t index[width];
    for (int l = 0; l < width; ++l) index[l] = first + static_cast<std::uint64_t>(k * width + l);
    a[k] = Counters::from(index);
    b[k] = a[k].upper();
    c[k] = Counters::of(stream.low);
    d[k] = Counters::of(stream.high);
  }
  std::uint32_t one = stream.key[0], two = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    const Counters key_one = Counters::of(one), key_two = Counters::of(two);
    for (int k = 0; k < vectors; ++k) {
      const Counters from_a = a[k].times(by_a), from_c = c[k].times(by_c);
      a[k] = from_c.upper() ^ b[k] ^ key_one;
      b[k] = from_c;
      c[k] = from_a.upper() ^ d[k] ^ key_two;
      d[k] = from_a;
    }
    one += 0x9E3779B9;
    two += 0xBB67AE85;
  }
  for (int k = 0; k < vectors; ++k) {
    std::uint64_t words[4][width];
    a[k].to(words[0]);
    b[k].to(words[1]);
    c[k].to(words[2]);
    d[k].to(words[3]);
    for (int l = 0; l < width; ++l) {
      const std::uint64_t halves[2] = {(words[0][l] & 0xFFFFFFFF) | words[1][l] << 32,
                                       (words[2][l] & 0xFFFFFFFF) | words[3][l] << 32};
      std::memcpy(random + 8 * (k * width + l), halves, sizeof halves);
    }
  }
}

}  // inline namespace of the instruction set
}  // namespace terse::detail
