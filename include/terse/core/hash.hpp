// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "terse/core/config.hpp"
#include "terse/core/layout.hpp"

namespace terse {

/// Mixes a value into a 64-bit hash (the finalizer of splitmix64). For fingerprints, not for security.
TERSE_HD constexpr std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15 + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  return hash ^ (hash >> 31);
}
/// Mixes the bytes of a text into a hash, without the 0 at its end.
constexpr std::uint64_t mix_hash(std::uint64_t hash, const char* text) {
  for (; *text != '\0'; ++text) hash = mix_hash(hash, static_cast<unsigned char>(*text));
  return hash;
}

namespace detail {

/// Returns a hash of bytes, never 0. It takes four words at a time, so that multiplications overlap.
inline std::uint64_t hash_bytes(const std::byte* data, std::size_t bytes) {
  std::uint64_t lane[4] = {1, 2, 3, 4};
  std::size_t at = 0;
  for (; at + sizeof lane <= bytes; at += sizeof lane)
    for (std::size_t l = 0; l < 4; ++l) {
      std::uint64_t word;
      std::memcpy(&word, data + at + 8 * l, sizeof word);
      lane[l] = std::rotl((lane[l] ^ word) * 0x9E3779B97F4A7C15, 29);
    }
  std::uint64_t hash = bytes;
  for (; at < bytes; ++at) hash = mix_hash(hash, static_cast<std::uint64_t>(data[at]));
  for (const std::uint64_t one : lane) hash = mix_hash(hash, one);
  return hash | 1;
}

/// Returns a hash of names, shapes, rates, flags and groups of all segments.
std::uint64_t layout_hash(const Layout& layout);

}  // namespace detail

}  // namespace terse

#ifndef TERSE_SEPARATE
#include "terse/core/hash.ipp"
#endif
