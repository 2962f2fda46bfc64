// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/core/ones.hpp"
#include "terse/device/verbs/wide.hpp"
#include "terse/executor/reduction.hpp"

// Reductions by functors that name their streams.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Stand-in for HandedOver when all streams are in memory.
struct NowhereElse {
  static constexpr Turn turn = Turn::alone;
  template <class F>
  TERSE_HD F moved(const F& f) const {
    return f;
  }
  TERSE_HD void bring(index_t) const {}
  TERSE_HD void take(index_t) const {}
};

TERSE_HD inline std::uint64_t two_of(float low, float high) {
  return std::bit_cast<std::uint32_t>(low) | std::uint64_t{std::bit_cast<std::uint32_t>(high)} << 32;
}

/// Evaluates the samples of a thread's four lanes of a tile, passes each to `sums`, and stores it if a packet is
/// written. `to` is f, or f with its last stream where `elsewhere` keeps it. Returns the number of elements kept.
template <int rows, bool Store, class Sums, class Space, class Incoming, class F, class Elsewhere>
TERSE_HD TERSE_INLINE int note_samples(Sums& sums, const Tile& tile, const Incoming& incoming,
                                       const Mask<Space>& mask, F& f, F& to, const Elsewhere& elsewhere,
                                       bool aligned, int lane, std::byte* wire) {
  int kept = 0;
  for (index_t b = tile.begin; b < tile.end; b += lanes) {
    for (; aligned && b + rows * lanes <= tile.end; b += rows * lanes) {
      const index_t first = tile.piece.offset + b + lane;
      const typename Incoming::template Rowwise<rows> arrived(incoming, tile, b, lane);
      if (arrived.damaged()) break;
      const FourOf<rows, Space> keep(mask, first);
      TERSE_UNROLL
      for (const std::uint32_t bits : keep.bits) kept += ones_in(bits & 15);
      with_rows<rows, Elsewhere::turn>(f, to, first, [&](int r, F& bound) {
        Quad<float> value;
        TERSE_UNROLL
        for (int j = 0; j < quad; ++j) {
          const bool here = keep(r, j);
          const Sample sample = arrived.call(bound, tile, r, j, here);
          sums.note(sample, here, j);
          value.x[j] = sample.value;
        }
        const index_t at = b + r * lanes + lane;
        sums.hold(at, value);
        if constexpr (Store) {
          std::byte* const place = wire + tile.going + 4 * at;
          store_aligned(place, two_of(value.x[0], value.x[1]));
          store_aligned(place + 8, two_of(value.x[2], value.x[3]));
        }
      });
    }
    if (b >= tile.end) break;
    const FourOf<1, Space> keep(mask, tile.piece.offset + b + lane);
    for (int j = 0; j < quad; ++j) {
      const index_t at = b + lane + j;
      if (at < tile.end) {
        const bool here = keep(0, j);
        elsewhere.bring(tile.piece.offset + at);
        const Sample sample = incoming.call(to, tile, b, lane + j, here);
        sums.note(sample, here, j);
        sums.hold(at, sample.value);
        kept += here;
        if constexpr (Store) store_aligned(wire + tile.going + 4 * at, sample.value);
      } else if (Store && at == tile.piece.count && tile.piece.count % 2 != 0) {
        store_aligned(wire + tile.going + 4 * at, 0.0F);  // pads the piece to 8 bytes
      }
    }
  }
  return kept;
}

/// A thread's part of a tile's sums.
template <class Statistic>
class WideSums {
 public:
  static constexpr int width = Statistic::width + 1;

  TERSE_HD WideSums() {
    for (int c = 0; c < width; ++c)
      for (int j = 0; j < quad; ++j) total_[c][j] = initial_component<Statistic>(c);
  }

  /// Adds samples, see note_samples.
  template <int rows, bool Store, class... Arguments>
  TERSE_HD TERSE_INLINE void add(Arguments&&... arguments) {
    kept_ += note_samples<rows, Store>(*this, arguments...);
  }
  TERSE_HD void note(const Sample& sample, bool keep, int j) {
    float term[Statistic::width];
    Statistic::terms(sample.value, term);
    keep_terms_if<Statistic>(keep, term);
    join_terms<Statistic>(&total_[0][j], quad, term, 1);
    total_[Statistic::width][j] += sample.bad;
  }
  TERSE_HD void hold(index_t, const Quad<float>&) {}
  TERSE_HD void hold(index_t, float) {}

  /// Joins the sums of a tile's threads by halves: those of 32, 16, 8 and 4 lanes are 8, 4, 2 and 1 threads away, the
  /// others in the thread. The whole warp takes part; the first thread of each tile has the result.
  template <class Block>
  TERSE_HD void join(Block& block, const WidePlace& place) {
    for (int half = row_threads / 2; half > 0; half /= 2) {
      const int other = (place.thread + half) % 32;
      kept_ += static_cast<int>(block.shuffle(static_cast<std::uint32_t>(kept_), other));
      for (int j = 0; j < quad; ++j) {
        float theirs[static_cast<std::size_t>(width)];
        for (int c = 0; c < width; ++c)
          theirs[c] = std::bit_cast<float>(block.shuffle(std::bit_cast<std::uint32_t>(total_[c][j]), other));
        join_results<Statistic>(&total_[0][j], quad, theirs, 1);
      }
    }
    for (int half = quad / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) join_results<Statistic>(&total_[0][j], quad, &total_[0][j + half], quad);
  }
  TERSE_HD float total(int c) const { return total_[c][0]; }
  TERSE_HD int kept() const { return kept_; }

 private:
  float total_[static_cast<std::size_t>(width)][quad];
  int kept_ = 0;
};

/// Counterpart of ReduceKernel for functors that name their streams.
template <Tuning tuned, class Statistic, bool Store, class Space, class Incoming, class F>
struct ReduceWideKernel {
  static constexpr Tuning tuning = tuned;
  static constexpr bool cooperative = true;
  static constexpr int width = Statistic::width + 1;
  struct Shared {};
  Slice slice;
  Mask<Space> mask;
  Incoming incoming;
  F f_;
  float* partial;
  index_t stride;
  std::byte* wire;
  bool aligned;
  int halvings;  // 0 with a statistic, whose shape requires whole tiles

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    const WidePlace place(block, tuning);
    WideSums<Statistic> sums;
    if (place.number < slice.tiles << halvings) {
      const Tile tile = slice.part_of_tile(place.number, halvings);
      F f = f_;
      enter(f, tile.piece);
      sums.template add<tuned_rows<tuned, F, (Incoming::bits > 0)>, Store>(
          tile, incoming, mask, f, f, NowhereElse{}, aligned, place.lane, wire);
    }
    if (Store && partial == nullptr) return;  // only the stored values are needed
    sums.join(block, place);
    if (place.lane != 0 || place.number >= slice.tiles) return;
    float* to = partial + slice.first_tile + place.number;
    for (int c = 0; c < width; ++c, to += stride) *to = sums.total(c);
    *to = std::bit_cast<float>(sums.kept());
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
