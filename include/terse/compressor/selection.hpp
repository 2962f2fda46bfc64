// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "terse/compressor/concept.hpp"
#include "terse/executor/select.hpp"
#include "terse/executor/sparse.hpp"

// A selection picks some of n values, n < 2^32, and says on the wire which. It has
//
//     most(n), variable                the most picks; exactly these unless `variable`
//     index_bytes(n, k)                wire bytes for the positions of k picks, a multiple of 8
//     floats(n), words(n)              scratch for `select`
//     select(executor, values, key, context, scratch, positions, wire) -> k
//                                      ascending positions, and their wire form
//     Reader(selection, wire, n, k, key, shared): position() of pick 0, of the next after next(), of pick e
//     after seek(e), where e only grows
//     fault(wire, n, k)                what is wrong with a wire form, or nullptr
//     unbiased, contractive, tracks, single_stage, delta(n), omega(n) as in Traits; where single_stage,
//     factor(n, k, e), which pick e is multiplied by before it is sent
//
// Arena indices key ... key + n - 1 are the unit's alone.

namespace terse {

namespace detail {

/// Scratch for selections.
template <Executor E>
struct PickScratch {
  out<E> floats;
  out<E, std::uint32_t> words;
};

/// max(1, ceil(ratio n)), at most n.
inline index_t share(double ratio, index_t n) {
  const auto picks = static_cast<index_t>(std::ceil(ratio * static_cast<double>(n)));
  return std::clamp(picks, std::min<index_t>(1, n), n);
}
inline void check_ratio(const char* name, double ratio) {
  if (!(ratio > 0 && ratio <= 1))
    throw usage_error(std::string(name) + " must be in (0, 1], not " + std::to_string(ratio));
}

/// Positions on the wire: 32 bits each, or one bit for each of the n values where that is shorter.
struct Positions {
  static constexpr bool is_bitmap(index_t n, index_t k) { return aligned(n) / 8 <= 4 * k; }
  static constexpr index_t bytes(index_t n, index_t k) {
    return is_bitmap(n, k) ? aligned(n) / 8 : (4 * k + 7) / 8 * 8;
  }

  static void write(in<executor::host, std::uint32_t> positions, index_t n, std::byte* wire) {
    const index_t k = positions.size();
    std::fill_n(wire, bytes(n, k), std::byte{0});
    if (!is_bitmap(n, k)) {
      if (k > 0) std::memcpy(wire, positions.data(), static_cast<std::size_t>(4 * k));
      return;
    }
    for (index_t e = 0; e < k; ++e) wire[positions[e] / 8] |= std::byte{1} << positions[e] % 8;
  }

  static const char* fault(const std::byte* wire, index_t n, index_t k) {
    if (is_bitmap(n, k)) {
      index_t set = 0;
      for (index_t at = 0; at < aligned(n) / 8; at += 8) {
        const std::uint64_t word = load(wire + at);
        if (n - 8 * at < 64 && word >> (n - 8 * at) != 0) return "a position beyond the end";
        set += std::popcount(word);
      }
      return set == k ? nullptr : "a bitmap of another number of positions";
    }
    std::int64_t before = -1;
    for (index_t e = 0; e < k; ++e) {
      const std::int64_t position = at(wire, e);
      if (position <= before) return "positions that do not ascend";
      if (position >= n) return "a position beyond the end";
      before = position;
    }
    return nullptr;
  }

  static std::int64_t at(const std::byte* wire, index_t e) {
    std::uint32_t position;
    std::memcpy(&position, wire + 4 * e, sizeof position);
    return position;
  }
  static std::uint64_t load(const std::byte* at) {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
  }

  /// Walks through the positions in order.
  class Reader {
   public:
    Reader() = default;
    template <class Selection>
    Reader(const Selection&, const std::byte* wire, index_t n, index_t k, index_t, Draw)
        : wire_(wire), left_(k), bitmap_(is_bitmap(n, k)) {
      if (left_ == 0) return;
      if (bitmap_) word_ = load(wire_);
      find();
    }
    index_t position() const { return position_; }
    void next() {
      ++at_;
      if (--left_ > 0) find();
    }
    void seek(index_t entry) {
      while (at_ < entry) next();
    }

   private:
    void find() {
      if (!bitmap_) {
        position_ = at(wire_, entry_++);
        return;
      }
      while (word_ == 0) word_ = load(wire_ + 8 * ++entry_);
      position_ = 64 * entry_ + std::countr_zero(word_);
      word_ &= word_ - 1;
    }

    const std::byte* wire_ = nullptr;
    index_t left_ = 0, entry_ = 0, position_ = 0, at_ = 0;
    std::uint64_t word_ = 0;
    bool bitmap_ = false;
  };
};

}  // namespace detail

}  // namespace terse
