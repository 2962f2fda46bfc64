// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "terse/compressor/rounding.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/core/half.hpp"
#include "terse/executor/concept.hpp"
#include "terse/executor/statistic.hpp"

// How a row of floats is kept: the rounding R of a memory, and a cursor by which functors read and write rows. A table
// has the address of row r of a micro-batch at place r; verbs say by `piece.segment` which row they are at.

namespace terse {

/// Rows of 8-bit integers with an fp32 scale for each 64: 1.0625 bytes an element.
struct Int8 {};

TERSE_NUMERICS_BEGIN

/// How rows of a memory are kept: `bytes(elements)` of a row, the format's `name`, and
///
///     Cursor(rows, elements)                        a view of a table of rows; pieces may have fewer elements
///     enter(piece), enter_block(first), leave_block(first, count)       as verbs call them
///     load(i)                                       element i, an arena index, as it is read
///     store(i, x)                                   R(x): to nearest, ties to even. x is finite, and so is R(x).
///                                                   Zero has no sign, so that R(m + 0) is m to the bit
///
/// A block is written as it is left, where `blocks`; then `hold(floats)` says before where the 64 values of a block
/// wait. Devices don't know when a block is left: there a GridCursor holds all values, and the verb's user has them
/// rounded by `for_each` with Round(cursor).
template <class H>
struct RowFormat;

/// A row as numbers of type H: sizeof(H) bytes an element, rounded up to whole lines of the cache.
template <Number H>
struct RowFormat<H> {
  static constexpr const char* name = std::same_as<H, float>  ? "fp32"
                                      : std::same_as<H, fp16> ? "fp16"
                                                              : "bf16";
  static constexpr bool blocks = false;
  /// Rows begin at lines of the cache.
  static constexpr index_t bytes(index_t elements) {
    return aligned(elements * static_cast<index_t>(sizeof(H)));
  }

  class Cursor {
   public:
    Cursor() = default;
    TERSE_HD Cursor(std::byte* const* rows, index_t) : rows_(rows) {}
    TERSE_HD void enter(const Piece& piece) {
      // Such that element i of the arena is at place i.
      row_ = reinterpret_cast<H*>(rows_[piece.segment]);
      first_ = piece.offset;
    }
    TERSE_HD float load(index_t i) const { return widened(row_[i - first_]); }
    TERSE_HD void store(index_t i, float x) const { row_[i - first_] = narrowed_finite<H>(x); }

   private:
    std::byte* const* rows_ = nullptr;
    H* row_ = nullptr;
    index_t first_ = 0;
  };
};

/// Codes first, then the scales of all blocks of 64. Nearest, 255 levels between -s and s, s the largest magnitude.
template <>
struct RowFormat<Int8> {
  using Quantizer = UniformLevels<8, Nearest, Symmetric, MaxAbs>;
  static constexpr const char* name = "int8";
  static constexpr bool blocks = true;
  /// The code of 0, also of a block's elements that a shorter piece leaves out.
  static constexpr std::uint8_t zero = 127;
  static constexpr index_t bytes(index_t elements) { return aligned(aligned(elements) / alignment * 68); }

  class Cursor {
   public:
    Cursor() = default;
    TERSE_HD Cursor(std::byte* const* rows, index_t elements)
        : rows_(rows), codes_bytes_(aligned(elements)) {}
    TERSE_HD void hold(float* values) { held_ = values; }
    TERSE_HD void enter(const Piece& piece) {
      row_ = rows_[piece.segment];
      first_ = piece.offset;
      scales_ = reinterpret_cast<float*>(row_ + codes_bytes_);
    }
    TERSE_HD void enter_block(index_t first) {
      at_ = first;
      codes_ = reinterpret_cast<std::uint8_t*>(row_ + (first - first_));
      scale_ = scales_[(first - first_) / alignment];
    }
    // An empty row, all zeros, reads as zeros, since its scales are 0.
    TERSE_HD float load(index_t i) const { return Quantizer::value(codes_[i - at_], scale_); }
    TERSE_HD void store(index_t i, float x) const { held_[i - at_] = x; }
    TERSE_HD void leave_block(index_t first, int count) {
      float scale = 0;
      for (int l = 0; l < count; ++l) scale = std::max(scale, magnitude(held_[l]));
      scales_[(first - first_) / alignment] = scale;
      const Quantizer::Coder code(scale);
      if (count == alignment)
        for (int l = 0; l < alignment; ++l) codes_[l] = static_cast<std::uint8_t>(code(held_[l], 0).code);
      else
        for (int l = 0; l < alignment; ++l)
          codes_[l] = l < count ? static_cast<std::uint8_t>(code(held_[l], 0).code) : zero;
    }

   private:
    std::byte* const* rows_ = nullptr;
    std::byte* row_ = nullptr;
    float* scales_ = nullptr;
    float* held_ = nullptr;
    std::uint8_t* codes_ = nullptr;
    float scale_ = 0;
    index_t codes_bytes_ = 0, first_ = 0, at_ = 0;
  };

  /// A device's: what is stored waits in `held`, which has the arena from index `begin` on, for Round.
  class GridCursor {
   public:
    GridCursor(std::byte* const* rows, index_t elements, float* held, index_t begin)
        : rows_(rows), held_(held), begin_(begin), codes_bytes_(aligned(elements)) {}
    TERSE_HD void enter(const Piece& piece) {
      codes_ = reinterpret_cast<std::uint8_t*>(rows_[piece.segment]);
      scales_ = reinterpret_cast<float*>(codes_ + codes_bytes_);
      first_ = piece.offset;
    }
    TERSE_HD float load(index_t i) const {
      return Quantizer::value(codes_[i - first_], scales_[(i - first_) / alignment]);
    }
    TERSE_HD void store(index_t i, float x) const { held_[i - begin_] = x; }

   protected:
    std::byte* const* rows_;
    float* held_;
    index_t begin_, codes_bytes_;
    std::uint8_t* codes_ = nullptr;
    float* scales_ = nullptr;
    index_t first_ = 0;
  };

  /// R of what waits. Each thread looks for the largest of its block by itself, without waiting for others.
  struct Round : GridCursor {
    explicit Round(const GridCursor& cursor) : GridCursor(cursor) {}
    TERSE_HD void operator()(const Piece& piece, index_t i, bool) const {
      const index_t at = i - piece.offset, block = at / alignment * alignment;
      const float* const values = held_ + (piece.offset - begin_);
      float scale = 0;
      for (index_t l = block; l < block + alignment && l < piece.count; ++l)
        scale = magnitude(values[l]) > scale ? magnitude(values[l]) : scale;
      codes_[at] = static_cast<std::uint8_t>(Quantizer::code(values[at], scale, 0));
      if (at == block) scales_[at / alignment] = scale;
      if (at + 1 == piece.count)
        for (index_t l = at + 1; l < block + alignment; ++l) codes_[l] = zero;
    }
  };
};

TERSE_NUMERICS_END

}  // namespace terse
