// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/device/verbs/wide_reduce.hpp"

// Reductions over few tiles. The shape of a sum is fixed, and 16 threads that add 64 rows one after the other leave a
// device idle if there are few tiles. But only the additions must wait for each other; the terms can be evaluated in
// parallel.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Kernel with one block of threads per tile. All threads evaluate, and leave the samples in shared memory; then one
/// warp adds these up in the order of the threads of ReduceKernel.
template <class Statistic, bool Store, class Space, class Incoming, class F>
struct ReduceFewKernel {
  static constexpr bool cooperative = true;
  static constexpr int width = Statistic::width + 1;
  static constexpr int halvings = 4;  // of a tile, into a part per group of 16 threads
  static_assert(row_threads << halvings == block_threads);
  struct alignas(16) Shared {
    float sample[reduction_block];
    std::uint64_t keep[reduction_block / lanes];
  };
  Slice slice;
  Mask<Space> mask;
  Incoming incoming;
  F f_;
  float* partial;
  index_t stride;
  std::byte* wire;
  bool aligned;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int thread = block.thread();
    const Tile tile = slice.tile(block.index());
    F f = f_;
    enter(f, tile.piece);
    Held held{shared.sample, tile.begin};
    if constexpr (RunsWide<Incoming, F>) {
      constexpr int rows = std::min(rows_of<F, (Incoming::bits > 0)>, lanes >> halvings);
      const Tile part = Slice::part_of(tile, thread / row_threads, halvings);
      held.kept += static_cast<std::uint32_t>(note_samples<rows, Store>(
          held, part, incoming, mask, f, f, NowhereElse{}, aligned, thread % row_threads * quad, wire));
    } else {
      evaluate(tile, f, held, thread);
    }
    if (const index_t row = thread * lanes; row < tile.end - tile.begin)
      shared.keep[thread] = mask.word(tile.piece.offset + tile.begin + row);
    // The two counts are below 2^16. After the sum, all threads see the samples.
    const std::uint32_t counts = block.sum(held.kept | held.bad << 16);
    if (thread >= 32) return;
    float total[static_cast<std::size_t>(Statistic::width)];
    add_up(block, shared, tile.end - tile.begin, total);
    if (thread != 0) return;
    float* to = partial + slice.first_tile + block.index();
    for (int c = 0; c < Statistic::width; ++c, to += stride) *to = total[c];
    *to = static_cast<float>(counts >> 16);
    to[stride] = std::bit_cast<float>(counts & 0xFFFF);
  }

 private:
  /// A thread's samples and counts.
  struct Held {
    float* sample;
    index_t begin;  // of the tile in its piece
    std::uint32_t kept = 0, bad = 0;

    TERSE_HD void note(const Sample& one, bool, int) { bad += one.bad != 0; }
    TERSE_HD void hold(index_t at, const Quad<float>& four) { store_quad(sample + (at - begin), four); }
    TERSE_HD void hold(index_t at, float one) { sample[at - begin] = one; }
  };

  /// Evaluates lane by lane, for functors that don't name their streams.
  TERSE_HD void evaluate(const Tile& tile, F& f, Held& held, int thread) const {
    const int lane = thread % lanes;
    for (index_t b = tile.begin + thread / lanes * lanes; b < tile.end; b += block_threads) {
      const index_t at = b + lane;
      if (at < tile.end) {
        const bool keep = (mask.word(tile.piece.offset + b) >> lane & 1) != 0;
        const Sample sample = incoming.call(f, tile, b, lane, keep);
        held.note(sample, keep, 0);
        held.hold(at, sample.value);
        held.kept += keep;
        if constexpr (Store) store_aligned(wire + tile.going + 4 * at, sample.value);
      } else if (Store && at == tile.piece.count && tile.piece.count % 2 != 0) {
        store_aligned(wire + tile.going + 4 * at, 0.0F);  // pads the piece to 8 bytes
      }
    }
  }

  /// Adds up the samples by a warp, whose threads have lanes t and t + 32. Its first thread gets the totals.
  template <class Block>
  TERSE_HD static void add_up(Block& block, const Shared& shared, index_t count,
                              float (&total)[static_cast<std::size_t>(Statistic::width)]) {
    constexpr int halves = lanes / 32, together = 8;
    const int thread = block.thread(), rows = static_cast<int>(count / lanes);
    float sum[halves][static_cast<std::size_t>(Statistic::width)];
    for (auto& one : sum)
      for (float& component : one) component = Statistic::initial;
    const auto add = [&](int half, float sample, std::uint64_t keep) {
      float term[Statistic::width];
      Statistic::terms(sample, term);
      keep_terms_if<Statistic>((keep >> (thread + 32 * half) & 1) != 0, term);
      join_terms<Statistic>(sum[half], 1, term, 1);
    };
    int row = 0;
    for (; row + together <= rows; row += together) {
      float sample[together][halves];
      std::uint64_t keep[together];
      TERSE_UNROLL
      for (int r = 0; r < together; ++r) {
        keep[r] = shared.keep[row + r];
        for (int half = 0; half < halves; ++half)
          sample[r][half] = shared.sample[(row + r) * lanes + 32 * half + thread];
      }
      TERSE_UNROLL
      for (int r = 0; r < together; ++r)
        for (int half = 0; half < halves; ++half) add(half, sample[r][half], keep[r]);
    }
    TERSE_ROLLED
    for (; row * lanes < count; ++row)
      for (int half = 0; half < halves; ++half) {
        const int at = row * lanes + 32 * half + thread;
        if (at < count) add(half, shared.sample[at], shared.keep[row]);
      }
    join_terms<Statistic>(sum[0], 1, sum[1], 1);
    for (int half = 16; half > 0; half /= 2) {
      for (int c = 0; c < Statistic::width; ++c)
        sum[1][c] = std::bit_cast<float>(
            block.shuffle(std::bit_cast<std::uint32_t>(sum[0][c]), (thread + half) % 32));
      join_terms<Statistic>(sum[0], 1, sum[1], 1);
    }
    for (int c = 0; c < Statistic::width; ++c) total[c] = sum[0][c];
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
