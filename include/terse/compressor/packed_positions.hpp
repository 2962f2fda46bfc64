// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "terse/compressor/arrived.hpp"
#include "terse/core/ones.hpp"

namespace terse::detail {

/// Returns the bits of a position among n: ceil(log2(n)), at least 1. n <= 2^32.
TERSE_HD inline int position_bits(index_t n) {
  return n > 2 ? width_of(static_cast<std::uint64_t>(n - 1)) : 1;
}

/// Contiguous numbers of `bits` bits each, 1 to 32, the lowest bit first: number e begins at bit `bits * e % 8` of byte
/// `bits * e / 8`. Any number can be read separately. Numbers in memory have 32 bits.
struct PackedPositions {
  const std::byte* wire = nullptr;
  int bits = 32;

  PackedPositions() = default;
  TERSE_HD PackedPositions(const std::byte* begin, int each) : wire(begin), bits(each) {}
  TERSE_HD explicit PackedPositions(const std::uint32_t* numbers)
      : wire(reinterpret_cast<const std::byte*>(numbers)) {}

  /// Returns the bytes of k numbers, a multiple of 8.
  TERSE_HD static index_t bytes(int bits, index_t k) { return (bits * k + 63) / 64 * 8; }

  TERSE_HD std::uint32_t operator[](index_t e) const {
    const index_t first = bits * e, last = first + bits - 1;
    // The two reads often load the same word, whose copy in the upper half is masked off. No read goes beyond the last number's
    // word.
    const auto low = load_from_wire<std::uint32_t>(wire + first / 32 * 4);
    const auto high = load_from_wire<std::uint32_t>(wire + last / 32 * 4);
    const std::uint64_t both = low | std::uint64_t{high} << 32;
    return static_cast<std::uint32_t>(both >> first % 32) & (~std::uint32_t{0} >> (32 - bits));
  }
  /// Checks whether the bits between the last of k numbers and the end are 0.
  TERSE_HD bool ends_in_zeros(index_t k) const {
    const index_t end = bits * k;
    return end % 64 == 0 || load_from_wire<std::uint64_t>(wire + end / 64 * 8) >> end % 64 == 0;
  }
};

/// A functor that packs 32 numbers into as many words of 32 bits as a number has bits. The last group is filled with
/// zeros.
struct PackPositions {
  static constexpr index_t together = 32;
  const std::uint32_t* positions;
  index_t k;
  int bits;
  std::byte* wire;

  TERSE_HD static index_t groups(index_t k) { return (k + together - 1) / together; }
  TERSE_HD void operator()(index_t group) const {
    const index_t first = group * together, left = k - first;
    const index_t here = left < together ? left : together;
    std::byte* to = wire + group * bits * 4;
    std::uint64_t word = 0;
    int held = 0;
    for (index_t e = first; e < first + here; ++e) {
      word |= std::uint64_t{positions[e]} << held;
      held += bits;
      if (held < 32) continue;
      to = store(to, word);
      word >>= 32;
      held -= 32;
    }
    if (held > 0) to = store(to, word);
    if (left <= together && (to - wire) % 8 != 0) store(to, 0);
  }

 private:
  TERSE_HD static std::byte* store(std::byte* to, std::uint64_t word) {
    const auto low = static_cast<std::uint32_t>(word);
#ifdef __CUDA_ARCH__
    *reinterpret_cast<std::uint32_t*>(to) = low;
#else
    std::memcpy(to, &low, sizeof low);
#endif
    return to + sizeof low;
  }
};

}  // namespace terse::detail
