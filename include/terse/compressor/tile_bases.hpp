// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>

#include "terse/compressor/cosines.hpp"
#include "terse/compressor/tiles.hpp"
#include "terse/core/ones.hpp"
#include "terse/executor/select.hpp"

// In what basis a tile is picked from. A Basis has a `template <int S> class Transform` with
//
//     forward(place, from, tile)     of the elements from the tile's first on, to rows * columns numbers
//     inverse(place, tile)           of these, to elements, row after row, in place

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {
/// Up to so many coefficients of a whole tile are waves across that are added up one by one.
template <int S>
struct FewWaves {
  static constexpr index_t most = S * S / 16, least_elements = 16 * most;
};
}  // namespace detail

/// Tiles as they are, row after row.
struct Elements {
  static constexpr bool transforms = false;

  template <int S>
  struct Transform {
    void forward(const detail::TilePlace& place, const float* from, float* tile) {
      for (index_t r = 0; r < place.rows; ++r)
        std::copy_n(from + r * place.stride, place.columns, tile + r * place.columns);
    }
    void inverse(const detail::TilePlace&, float*) {}
  };
};

/// Tiles by their orthonormal two-dimensional DCT-II. The coefficient of u half waves down and v across is at position v rows + u.
struct CosineWaves {
  static constexpr bool transforms = true;

  template <int S>
  class Transform {
    using Waves = detail::Cosines<S>;
    using Row = typename Waves::Row;
    typedef float Anywhere  // NOLINT: no alias can say it
        __attribute__((vector_size(sizeof(Row)), aligned(alignof(float)), may_alias));
    static constexpr index_t width = Waves::width;

   public:
    void forward(const detail::TilePlace& place, const float* from, float* tile) {
      const index_t rows = place.rows, columns = place.columns;
      for (index_t first = 0; first < columns; first += width) {
        load(from + first, place.stride, rows, columns - first);
        waves_.forward(static_cast<int>(rows), strip_, result_);
        store_turned(middle_ + first * rows, rows, columns - first);
      }
      for (index_t first = 0; first < rows; first += width) {
        load(middle_ + first, rows, columns, rows - first);
        waves_.forward(static_cast<int>(columns), strip_, result_);
        store(tile + first, rows, columns, rows - first);
      }
    }
    void inverse(const detail::TilePlace& place, float* tile) {
      const index_t rows = place.rows, columns = place.columns;
      const index_t count = rows * columns;
      if (count >= Few::least_elements && nonzero(tile, count) <= Few::most)
        add_waves(tile, rows, columns);
      else
        for (index_t first = 0; first < rows; first += width) {
          load(tile + first, rows, columns, rows - first);
          waves_.inverse(static_cast<int>(columns), strip_, result_);
          store_turned(middle_ + first * columns, columns, rows - first);
        }
      for (index_t first = 0; first < columns; first += width) {
        load(middle_ + first, columns, rows, columns - first);
        waves_.inverse(static_cast<int>(rows), strip_, result_);
        store(tile + first, columns, rows, columns - first);
      }
    }

   private:
    using Few = detail::FewWaves<S>;

    static index_t nonzero(const float* tile, index_t count) {
      index_t found = 0;
      for (index_t b = 0; b < count; b += alignment)
        found += ones_in(detail::at_least(tile + b, count - b, 1));
      return found;
    }
    struct AddWave {
      const Waves& waves;
      index_t rows, columns;
      float* to;
      static std::uint32_t least() { return 1; }
      TERSE_INLINE bool operator()(index_t position, float value) const {
        const float* const wave = waves.wave(static_cast<int>(columns), static_cast<int>(position / rows));
        float* const row = to + position % rows * columns;
        TERSE_LANES
        for (index_t c = 0; c < columns; ++c) row[c] += value * wave[c];
        return true;
      }
    };
    void add_waves(const float* tile, index_t rows, index_t columns) {
      std::fill_n(middle_, rows * columns, 0.0F);
      AddWave add{waves_, rows, columns, middle_};
      detail::walk(tile, rows * columns, add);
    }

    // Strips of `width` columns; what a narrower one lacks is 0 and goes nowhere.
    void load(const float* from, index_t stride, index_t count, index_t there) {
      if (there >= width) {
        // As a whole: pieces would be stored apart, and read together too soon.
        for (index_t j = 0; j < count; ++j) strip_[j] = *reinterpret_cast<const Anywhere*>(from + j * stride);
        return;
      }
      for (index_t j = 0; j < count; ++j) {
        strip_[j] = Row{};
        std::memcpy(&strip_[j], from + j * stride, static_cast<std::size_t>(there) * sizeof(float));
      }
    }
    void store(float* to, index_t stride, index_t count, index_t there) const {
      if (there >= width) {
        for (index_t j = 0; j < count; ++j) *reinterpret_cast<Anywhere*>(to + j * stride) = result_[j];
        return;
      }
      for (index_t j = 0; j < count; ++j)
        std::memcpy(to + j * stride, &result_[j], static_cast<std::size_t>(there) * sizeof(float));
    }
    /// Columns become rows of `count` numbers.
    void store_turned(float* to, index_t count, index_t there) const {
      const auto* const from = reinterpret_cast<const float*>(result_);
      index_t j = 0;
#ifdef __SSE2__
      if (there >= width)
        for (; j + 4 <= count; j += 4)
          for (index_t l = 0; l < width; l += 4) {
            const float* const block = from + j * width + l;
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
        for (index_t l = 0; l < std::min(there, width); ++l) to[l * count + j] = from[j * width + l];
    }

    const Waves& waves_ = Waves::instance();
    Row strip_[std::size_t{S}], result_[std::size_t{S}];
    alignas(64) float middle_[static_cast<std::size_t>(S) * S];
  };
};

TERSE_NUMERICS_END

}  // namespace terse
