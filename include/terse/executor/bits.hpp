// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>  // a second less to compile
#endif

#include "terse/core/config.hpp"

namespace terse::detail {

inline namespace TERSE_INSTRUCTIONS {

/// The number of lanes in a block: one word of bits.
inline constexpr int lanes = 64;

/// Sets byte l to 1 if bit l of `word` is set, else to 0.
inline void spread_bits(std::uint64_t word, std::uint8_t* bytes) {
#if defined(__AVX512BW__)
  _mm512_storeu_si512(bytes, _mm512_maskz_set1_epi8(word, 1));
#elif defined(__AVX2__)
  const __m256i select = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i replicate = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  for (int half = 0; half < 2; ++half) {
    const __m256i four = _mm256_set1_epi32(static_cast<int>(word >> (32 * half)));
    const __m256i bit = _mm256_and_si256(_mm256_shuffle_epi8(four, replicate), select);
    const __m256i one = _mm256_and_si256(_mm256_cmpeq_epi8(bit, select), _mm256_set1_epi8(1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + 32 * half), one);
  }
#elif defined(__SSE2__)
  const __m128i select = _mm_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m128i all = _mm_set1_epi64x(static_cast<long long>(word));
  const __m128i twice = _mm_unpacklo_epi8(all, all);  // bytes 0 0 1 1 2 2 ... 7 7
  const __m128i low = _mm_unpacklo_epi16(twice, twice), high = _mm_unpackhi_epi16(twice, twice);
  const auto store = [&](int begin, __m128i eight) {
    const __m128i one = _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(eight, select), select), _mm_set1_epi8(1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + begin), one);
  };
  store(0, _mm_unpacklo_epi32(low, low));
  store(16, _mm_unpackhi_epi32(low, low));
  store(32, _mm_unpacklo_epi32(high, high));
  store(48, _mm_unpackhi_epi32(high, high));
#else
  for (int l = 0; l < lanes; ++l) bytes[l] = static_cast<std::uint8_t>((word >> l) & 1);
#endif
}

/// Narrows words to bytes, into which their values fit.
inline void narrow(const std::uint32_t* words, std::uint8_t* to) {
#if defined(__AVX512BW__)
  // Uses a mask of all lanes, since g++ 12 warns about undefined values inside the form without a mask.
  for (int begin = 0; begin < lanes; begin += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + begin),
                     _mm512_maskz_cvtepi32_epi8(0xFFFF, _mm512_loadu_si512(words + begin)));
#elif defined(__AVX2__)
  const auto load = [&](int begin) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + begin));
  };
  // Packing works within halves of a register and leaves groups of four in the order 0 2 4 6, 1 3 5 7.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int begin = 0; begin < lanes; begin += 32) {
    const __m256i low = _mm256_packus_epi32(load(begin), load(begin + 8));
    const __m256i high = _mm256_packus_epi32(load(begin + 16), load(begin + 24));
    const __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + begin), all);
  }
#elif defined(__SSE2__)
  const auto load = [&](int begin) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + begin));
  };
  for (int begin = 0; begin < lanes; begin += 16) {
    const __m128i low = _mm_packs_epi32(load(begin), load(begin + 4));
    const __m128i high = _mm_packs_epi32(load(begin + 8), load(begin + 12));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + begin), _mm_packus_epi16(low, high));
  }
#else
  for (int l = 0; l < lanes; ++l) to[l] = static_cast<std::uint8_t>(words[l]);
#endif
}

/// Narrows words to 16 bits, into which their values fit.
inline void narrow(const std::uint32_t* words, std::uint16_t* to) {
#if defined(__AVX512BW__)
  for (int begin = 0; begin < lanes; begin += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + begin),
                        _mm512_maskz_cvtepi32_epi16(0xFFFF, _mm512_loadu_si512(words + begin)));
#elif defined(__AVX2__)
  const auto load = [&](int begin) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + begin));
  };
  for (int begin = 0; begin < lanes; begin += 16) {
    const __m256i all = _mm256_packus_epi32(load(begin), load(begin + 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + begin), _mm256_permute4x64_epi64(all, 0xD8));
  }
#elif defined(__SSE2__)
  // SSE2 narrows words of 32 bits only as signed ones, so the lower 16 bits are sign-extended first.
  const auto load = [&](int begin) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + begin));
    return _mm_srai_epi32(_mm_slli_epi32(four, 16), 16);
  };
  for (int begin = 0; begin < lanes; begin += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + begin), _mm_packs_epi32(load(begin), load(begin + 4)));
#else
  for (int l = 0; l < lanes; ++l) to[l] = static_cast<std::uint16_t>(words[l]);
#endif
}

#if !defined(__AVX512BW__)
/// Returns a word whose bit l is bit `bit` of byte l.
inline std::uint64_t gather_bits(const std::uint8_t* bytes, int bit) {
#if defined(__AVX2__)
  const auto half = [&](int begin) {
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + begin));
    // Moves the wanted bit to each byte's top; bits from its neighbour stay below the top.
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(value, 7 - bit)));
  };
  return half(0) | std::uint64_t{half(32)} << 32;
#elif defined(__SSE2__)
  std::uint64_t word = 0;
  for (int begin = 0; begin < lanes; begin += 16) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + begin));
    const int mask = _mm_movemask_epi8(_mm_slli_epi16(value, 7 - bit));
    word |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(mask)) << begin;
  }
  return word;
#else
  std::uint64_t word = 0;
  for (int l = 0; l < lanes; ++l) word |= static_cast<std::uint64_t>((bytes[l] >> bit) & 1) << l;
  return word;
#endif
}
#endif

/// Packs words of Bits bits into bit planes of 8 bytes each.
template <int Bits>
inline void pack_planes(const std::uint32_t* words, std::byte* planes) {
#if defined(__AVX512BW__)
  // Uses no intermediate bytes: a load of 64 bytes would wait for the four stores that wrote them.
  for (int bit = 0; bit < Bits; ++bit) {
    const __m512i wanted = _mm512_set1_epi32(1 << bit);
    std::uint64_t plane = 0;
    for (int begin = 0; begin < lanes; begin += 16)
      plane |= std::uint64_t{_mm512_test_epi32_mask(_mm512_loadu_si512(words + begin), wanted)} << begin;
    std::memcpy(planes + 8 * bit, &plane, sizeof plane);
  }
#else
  alignas(64) std::uint8_t bytes[lanes];
  narrow(words, bytes);
  for (int bit = 0; bit < Bits; ++bit) {
    const std::uint64_t plane = gather_bits(bytes, bit);
    std::memcpy(planes + 8 * bit, &plane, sizeof plane);
  }
#endif
}

}  // namespace TERSE_INSTRUCTIONS
}  // namespace terse::detail
