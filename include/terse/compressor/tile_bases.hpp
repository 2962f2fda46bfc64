// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>

#include "terse/compressor/cosines.hpp"
#include "terse/compressor/tiles.hpp"
#include "terse/core/ones.hpp"
#include "terse/executor/select.hpp"

// The bases in which elements or coefficients of tiles are picked. A Basis has a `template <int S> class Transform`
// with
//
//     forward(place, from, tile)     transforms the elements from the tile's first on to rows * columns numbers
//     inverse(place, tile)           transforms these to elements, row after row, in place
//     inverse(place, picks, tile)    does the same for a tile that has only picks

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {
/// The largest number of coefficients of a whole tile whose horizontal waves are added one by one.
template <int S>
struct FewWaves {
  static constexpr index_t most = S * S / 16, least_elements = 16 * most;
};

/// The picks from a tile.
template <int S>
struct TilePicks {
  index_t count = 0, nonzero = 0;
  std::uint32_t positions[static_cast<std::size_t>(S) * S];
  float values[static_cast<std::size_t>(S) * S];

  TERSE_HD void add(index_t position, float value) {
    positions[count] = static_cast<std::uint32_t>(position);
    values[count++] = value;
    nonzero += value != 0 ? 1 : 0;
  }
  void expand(float* tile, index_t elements) const {
    std::fill_n(tile, elements, 0.0F);
    for (index_t p = 0; p < count; ++p) tile[positions[p]] = values[p];
  }
};
}  // namespace detail

/// The basis of elements: tiles as they are, row after row.
struct Elements {
  static constexpr bool transforms = false;

  template <int S>
  struct Transform {
    void forward(const detail::TilePlace& place, const float* from, float* tile) {
      for (index_t r = 0; r < place.rows; ++r)
        std::copy_n(from + r * place.stride, place.columns, tile + r * place.columns);
    }
    void inverse(const detail::TilePlace&, float*) {}
    void inverse(const detail::TilePlace& place, const detail::TilePicks<S>& picks, float* tile) {
      picks.expand(tile, place.rows * place.columns);
    }
  };
};

/// The orthonormal two-dimensional DCT-II of tiles. The coefficient of u half waves down and v across is at position
/// v rows + u.
struct CosineWaves {
  static constexpr bool transforms = true;

  template <int S>
  class Transform {
    using Waves = detail::Cosines<S>;
    static constexpr index_t width = Waves::width;

   public:
    void forward(const detail::TilePlace& place, const float* from, float* tile) {
      const index_t rows = place.rows, columns = place.columns;
      for (index_t first = 0; first < columns; first += width) {
        waves_.forward(static_cast<int>(rows), strip(from + first, place.stride, rows, columns - first),
                       {result_, width});
        store_turned(middle_ + first * rows, rows, columns - first);
      }
      for (index_t first = 0; first < rows; first += width) {
        const bool whole = rows - first >= width;
        waves_.forward(static_cast<int>(columns), strip(middle_ + first, rows, columns, rows - first),
                       whole ? To{tile + first, rows} : To{result_, width});
        if (!whole) store(tile + first, rows, columns, rows - first);
      }
    }
    void inverse(const detail::TilePlace& place, float* tile) {
      if (!add_few_waves(tile, place.rows, place.columns)) invert_rows(tile, place.rows, place.columns);
      invert_columns(tile, place.rows, place.columns);
    }
    void inverse(const detail::TilePlace& place, const detail::TilePicks<S>& picks, float* tile) {
      const index_t count = place.rows * place.columns;
      if (count >= Few::least_elements && picks.nonzero <= Few::most) {
        std::fill_n(middle_, count, 0.0F);
        for (index_t p = 0; p < picks.count; ++p)
          add_wave(picks.positions[p], picks.values[p], place.rows, place.columns);
      } else {
        picks.expand(tile, count);
        invert_rows(tile, place.rows, place.columns);
      }
      invert_columns(tile, place.rows, place.columns);
    }

   private:
    using From = typename Waves::From;
    using To = typename Waves::To;
    using Few = detail::FewWaves<S>;

    void invert_rows(const float* tile, index_t rows, index_t columns) {
      for (index_t first = 0; first < rows; first += width) {
        waves_.inverse(static_cast<int>(columns), strip(tile + first, rows, columns, rows - first),
                       {result_, width});
        store_turned(middle_ + first * columns, columns, rows - first);
      }
    }
    void invert_columns(float* tile, index_t rows, index_t columns) {
      for (index_t first = 0; first < columns; first += width) {
        const bool whole = columns - first >= width;
        waves_.inverse(static_cast<int>(rows), strip(middle_ + first, columns, rows, columns - first),
                       whole ? To{tile + first, columns} : To{result_, width});
        if (!whole) store(tile + first, columns, rows, columns - first);
      }
    }

    /// Computes the rows of a tile as sums of its horizontal waves; returns false if these are many.
    bool add_few_waves(const float* tile, index_t rows, index_t columns) {
      const index_t count = rows * columns;
      if (count < Few::least_elements) return false;
      std::uint64_t words[static_cast<std::size_t>(S * S / alignment + 1)];
      index_t found = 0;
      for (index_t b = 0; b < count; b += alignment) {
        words[b / alignment] = detail::at_least(tile + b, count - b, 1);
        found += detail::ones_in(words[b / alignment]);
      }
      if (found > Few::most) return false;
      std::fill_n(middle_, count, 0.0F);
      for (index_t b = 0; b < count; b += alignment)
        for (std::uint64_t word = words[b / alignment]; word != 0; word &= word - 1) {
          const index_t position = b + detail::first_one_in(word);
          add_wave(static_cast<std::uint32_t>(position), tile[position], rows, columns);
        }
      return true;
    }
    void add_wave(std::uint32_t position, float value, index_t rows, index_t columns) {
      const auto u = position % static_cast<std::uint32_t>(rows),
                 v = position / static_cast<std::uint32_t>(rows);
      const float* const wave = waves_.wave(static_cast<int>(columns), static_cast<int>(v));
      float* const row = middle_ + u * columns;
      index_t c = 0;
      for (; c + width <= columns; c += width) To{row + c, 0}[0].row += value * From{wave + c, 0}[0].row;
      for (; c < columns; ++c) row[c] += value * wave[c];
    }

    /// Returns a strip of `width` columns; a narrower one is padded with zeros, which are not stored afterwards.
    From strip(const float* from, index_t stride, index_t count, index_t there) {
      if (there >= width) return {from, stride};
      for (index_t j = 0; j < count; ++j) {
        std::copy_n(from + j * stride, there, strip_ + j * width);
        std::fill_n(strip_ + j * width + there, width - there, 0.0F);
      }
      return {strip_, width};
    }
    void store(float* to, index_t stride, index_t count, index_t there) const {
      for (index_t j = 0; j < count; ++j) std::copy_n(result_ + j * width, there, to + j * stride);
    }
    /// Stores the transpose: columns become rows of `count` numbers.
    void store_turned(float* to, index_t count, index_t there) const {
      index_t j = 0;
#if defined(__AVX512F__)
      if (there >= width)
        for (; j + 16 <= count; j += 16)
          for (index_t l = 0; l < width; l += 4) {
            // Each vector takes a quarter from every fourth row, so it ends up in order.
            const float* const block = result_ + j * width + l;
            const auto rows = [&](index_t k) {
              const float* const from = block + k * width;
              __m512 row = _mm512_castps128_ps512(_mm_load_ps(from));
              row = _mm512_insertf32x4(row, _mm_load_ps(from + 4 * width), 1);
              row = _mm512_insertf32x4(row, _mm_load_ps(from + 8 * width), 2);
              return _mm512_insertf32x4(row, _mm_load_ps(from + 12 * width), 3);
            };
            const __m512 a = rows(0), b = rows(1), c = rows(2), d = rows(3);
            const __m512 ab = _mm512_shuffle_ps(a, b, 0x44), cd = _mm512_shuffle_ps(c, d, 0x44);
            const __m512 above = _mm512_shuffle_ps(a, b, 0xEE), below = _mm512_shuffle_ps(c, d, 0xEE);
            float* const turned = to + l * count + j;
            _mm512_storeu_ps(turned, _mm512_shuffle_ps(ab, cd, 0x88));
            _mm512_storeu_ps(turned + count, _mm512_shuffle_ps(ab, cd, 0xDD));
            _mm512_storeu_ps(turned + 2 * count, _mm512_shuffle_ps(above, below, 0x88));
            _mm512_storeu_ps(turned + 3 * count, _mm512_shuffle_ps(above, below, 0xDD));
          }
#elif defined(__SSE2__)
      if (there >= width)
        for (; j + 4 <= count; j += 4)
          for (index_t l = 0; l < width; l += 4) {
            const float* const block = result_ + j * width + l;
            __m128 a = _mm_load_ps(block), b = _mm_load_ps(block + width);
            __m128 c = _mm_load_ps(block + 2 * width), d = _mm_load_ps(block + 3 * width);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            float* const turned = to + l * count + j;
            _mm_storeu_ps(turned, a);
            _mm_storeu_ps(turned + count, b);
            _mm_storeu_ps(turned + 2 * count, c);
            _mm_storeu_ps(turned + 3 * count, d);
          }
#endif
      for (; j < count; ++j)
        for (index_t l = 0; l < std::min(there, width); ++l) to[l * count + j] = result_[j * width + l];
    }

    const Waves& waves_ = Waves::instance();
    alignas(64) float strip_[static_cast<std::size_t>(S * width)],
        result_[static_cast<std::size_t>(S * width)], middle_[static_cast<std::size_t>(S) * S];
  };
};

TERSE_NUMERICS_END

}  // namespace terse
