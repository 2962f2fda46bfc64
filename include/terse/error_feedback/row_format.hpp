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

// Storage formats for rows of floats: the rounding R of a memory, and a cursor by which functors read and write rows.
// Entry r of a table is the address of row r of a micro-batch; verbs pass the current row as `piece.segment`.

namespace terse {

/// Rows of 8-bit integers with an fp32 scale for every 64: 1.0625 bytes per element.
struct Int8 {};

TERSE_NUMERICS_BEGIN

/// The storage format of a memory's rows. It has `bytes(elements)` of a row, the format's `name`, and
///
///     Cursor(rows, elements)                        a view of a table of rows; pieces may have fewer elements
///     enter(piece), enter_block(first), leave_block(first, count)       as verbs call them
///     load(i)                                       the stored value of element i, an arena index
///     store(i, x)                                   stores R(x): to nearest, ties to even. x and R(x) are finite.
///                                                   Zero has no sign, so R(m + 0) is bitwise equal to m
///
/// With `blocks`, `leave_block` writes a block; before, `hold(floats)` passes the buffer for its 64 values. Devices
/// don't call `leave_block`: there a GridCursor holds all values, and the verb's caller rounds them by `for_each` with
/// Round(cursor).
template <class H>
struct RowFormat;

/// A row as numbers of type H: sizeof(H) bytes per element, rounded up to whole cache lines.
template <Number H>
struct RowFormat<H> {
  static constexpr const char* name = std::same_as<H, float>  ? "fp32"
                                      : std::same_as<H, fp16> ? "fp16"
                                                              : "bf16";
  static constexpr bool blocks = false;
  /// Returns the bytes of a row, which begins at a cache line.
  static constexpr index_t bytes(index_t elements) {
    return aligned(elements * static_cast<index_t>(sizeof(H)));
  }

  class Cursor {
   public:
    Cursor() = default;
    TERSE_HD Cursor(std::byte* const* rows, index_t) : rows_(rows) {}
    TERSE_HD void enter(const Piece& piece) {
      // Element i of the arena is row_[i - first_].
      row_ = reinterpret_cast<H*>(rows_[piece.segment]);
      first_ = piece.offset;
    }
    TERSE_HD float load(index_t i) const { return widened(row_[i - first_]); }
    TERSE_HD void store(index_t i, float x) const { row_[i - first_] = detail::narrowed_finite<H>(x); }

   private:
    std::byte* const* rows_ = nullptr;
    H* row_ = nullptr;
    index_t first_ = 0;
  };
};

/// The codes, followed by the scales of all blocks of 64. Rounds to nearest; 255 levels between -s and s, where s is
/// the largest magnitude.
template <>
struct RowFormat<Int8> {
  using Quantizer = quantizer::UniformLevels<8, Nearest, Symmetric, MaxAbs>;
  static constexpr const char* name = "int8";
  static constexpr bool blocks = true;
  /// The code of 0, also for a block's elements after the end of a shorter piece.
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
    // A row of zero bytes reads as zeros, since its scales are 0.
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

  /// A device's cursor: stored values are buffered for Round in `held`, which begins at arena index `begin`.
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

  /// The rounding of the buffered values. Each thread finds the maximum of its block alone, without synchronization.
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
