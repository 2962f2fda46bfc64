// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "terse/core/ones.hpp"
#include "terse/device/verbs/kernels.hpp"
#include "terse/executor/reduction.hpp"
#include "terse/executor/sinks.hpp"

// The evaluation of a tile's samples, and their sum in the one shape of reductions.

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

/// Evaluates the sample of one lane, the thread's j-th, passes it to `sums`, and stores it if a packet is written.
template <bool Store, class Sums, class Incoming, class F>
TERSE_HD TERSE_INLINE void note_sample(Sums& sums, const Tile& tile, const Incoming& incoming, F& f,
                                       index_t b, int lane, int j, bool keep, std::byte* wire) {
  const index_t at = b + lane;
  if (at < tile.end) {
    const Sample sample = incoming.call(f, tile, b, lane, keep);
    sums.note(sample, keep, j);
    sums.hold(at, sample.value);
    sums.count(keep);
    if constexpr (Store) store_aligned(wire + tile.going + 4 * at, sample.value);
  } else if (Store && at == tile.piece.count && tile.piece.count % 2 != 0) {
    store_aligned(wire + tile.going + 4 * at, 0.0F);  // pads the piece to 8 bytes
  }
}

/// Evaluates the samples of a thread's four lanes of a tile. `to` is f, or f with its last stream in the place where
/// `elsewhere` keeps it.
template <int rows, bool Store, class Sums, class Space, class Incoming, class F, class Elsewhere>
TERSE_HD TERSE_INLINE void note_samples(Sums& sums, const Tile& tile, const Incoming& incoming,
                                        const Mask<Space>& mask, F& f, F& to, const Elsewhere& elsewhere,
                                        bool aligned, int lane, std::byte* wire) {
  for (index_t b = tile.begin; b < tile.end; b += lanes) {
    for (; aligned && b + rows * lanes <= tile.end; b += rows * lanes) {
      const index_t first = tile.piece.offset + b + lane;
      const typename Incoming::template Rowwise<rows> arrived(incoming, tile, b, lane);
      if (arrived.damaged()) break;
      const FourOf<rows, Space> keep(mask, first);
      TERSE_UNROLL
      for (const std::uint32_t bits : keep.bits) sums.count(ones_in(bits & 15));
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
      if (b + lane + j < tile.end) elsewhere.bring(tile.piece.offset + b + lane + j);
      note_sample<Store>(sums, tile, incoming, to, b, lane + j, j, keep(0, j), wire);
    }
  }
}

/// A second use of a tile's samples, in addition to their sum: none.
struct SumOnly {
  static constexpr bool whole_warps = false;
  template <class Block, class Sums, class Note>
  TERSE_HD TERSE_INLINE void operator()(Block&, Sums& sums, const Tile& tile, bool, Note note) const {
    note(sums, tile);
  }
};
/// A second use of a tile's samples, in addition to their sum: they are coded, as CodeSamples does on the host.
template <class Q>
struct CodeRows {
  static constexpr bool whole_warps = true;
  /// Sums that also record the codes of eight rows from b on.
  template <class Sums>
  struct Coded {
    Sums& sums;
    index_t b;
    Planes<Q::bits> planes{};

    TERSE_HD void note(const Sample& sample, bool keep, int j) { sums.note(sample, keep, j); }
    TERSE_HD void count(int kept) { sums.count(kept); }
    TERSE_HD void hold(index_t at, const Quad<float>& four) {
      sums.hold(at, four);
      std::uint32_t their_codes[quad];
      TERSE_UNROLL
      for (int j = 0; j < quad; ++j) their_codes[j] = code(four.x[j]);
      planes.note(row(at), their_codes);
    }
    TERSE_HD void hold(index_t at, float one) {
      sums.hold(at, one);
      planes.note(row(at), static_cast<int>(at % quad), code(one));
    }

   private:
    TERSE_HD int row(index_t at) const { return static_cast<int>(at - b) / lanes; }
    TERSE_HD static std::uint32_t code(float sample) {
      return Q::code(sample, typename Q::Statistic::Scale{}, 0);
    }
  };
  std::byte* codes;
  index_t begin;  // the arena index of the first

  /// Calls note(sums, part) for parts of eight rows, and stores their codes. The whole warp takes part; `here`: true if
  /// this thread has a tile.
  template <class Block, class Sums, class Note>
  TERSE_HD TERSE_INLINE void operator()(Block& block, Sums& sums, const Tile& tile, bool here,
                                        Note note) const {
    constexpr index_t elements = Planes<Q::bits>::rows * lanes;
    const index_t end = here ? tile.end : tile.begin;
    for (Tile part = tile; block.ballot(part.begin < end) != 0; part.begin += elements) {
      part.end = part.begin + elements < end ? part.begin + elements : end;
      Coded<Sums> coded{sums, part.begin};
      note(coded, part);
      coded.planes.store(block, block.thread() % 32, codes + (part.piece.offset - begin) / 8 * Q::bits,
                         part.begin, part.end);
    }
  }
};

/// Evaluates the samples of a tile that `threads` threads share, lane by lane.
template <int threads, bool Store, class Sums, class Space, class Incoming, class F>
TERSE_HD void note_lanes(Sums& sums, const Tile& tile, const Incoming& incoming, const Mask<Space>& mask,
                         F& f, int thread, std::byte* wire) {
  constexpr int own = threads < lanes ? lanes / threads : 1;
  for (index_t b = tile.begin + thread / lanes * lanes; b < tile.end; b += threads * own) {
    const std::uint64_t keep = mask.word(tile.piece.offset + b);
    TERSE_UNROLL
    for (int j = 0; j < own; ++j) {
      const int lane = thread % lanes + j * threads;
      note_sample<Store>(sums, tile, incoming, f, b, lane, j, (keep >> lane & 1) != 0, wire);
    }
  }
}

/// The results of a tile or a unit: components, the count of values that are not finite, and the count of kept
/// elements.
template <class Statistic>
struct TileTotals {
  static constexpr int width = Statistic::width + 1;
  float of[static_cast<std::size_t>(width)];
  index_t kept;

  TERSE_HD typename Statistic::Scale finish(std::uint32_t* bad) const {
    return finish_unit<Statistic>(of, kept, bad);
  }
};

/// A thread's part of a tile's sums. Either 16 threads of a warp share the tile, each with four neighbouring lanes, or
/// 32 do, each with two lanes, t and t + 32.
template <class Statistic, int threads>
class OwnSums {
 public:
  static constexpr int width = Statistic::width + 1;
  struct Shared {};

  TERSE_HD OwnSums() {
    for (int c = 0; c < width; ++c)
      for (int j = 0; j < own; ++j) total_[c][j] = initial_component<Statistic>(c);
  }
  TERSE_HD explicit OwnSums(Shared&) : OwnSums() {}
  template <class Space>
  TERSE_HD void begin(const Tile&, const Mask<Space>&, int) {}

  TERSE_HD void note(const Sample& sample, bool keep, int j) {
    float term[Statistic::width];
    Statistic::terms(sample.value, term);
    keep_terms_if<Statistic>(keep, term);
    join_terms<Statistic>(&total_[0][j], own, term, 1);
    total_[Statistic::width][j] += sample.bad;
  }
  TERSE_HD void count(int kept) { kept_ += kept; }
  TERSE_HD void hold(index_t, const Quad<float>&) {}
  TERSE_HD void hold(index_t, float) {}

  /// Joins the sums of a tile's threads by halves: those of lanes at distance 32, 16, 8 ... are in other threads or in
  /// the thread itself. The whole warp takes part. Returns true in the first thread of each tile, which gets the totals.
  template <class Block>
  TERSE_HD bool join(Block& block, TileTotals<Statistic>& totals) {
    constexpr bool far = threads == 32;
    constexpr int columns = far ? 1 : own;
    const int thread = block.thread() % 32;
    if constexpr (far) join_own();
    for (int half = threads / 2; half > 0; half /= 2) {
      const int other = (thread + half) % 32;
      kept_ += static_cast<int>(block.shuffle(static_cast<std::uint32_t>(kept_), other));
      for (int j = 0; j < columns; ++j) {
        float theirs[static_cast<std::size_t>(width)];
        for (int c = 0; c < width; ++c)
          theirs[c] = std::bit_cast<float>(block.shuffle(std::bit_cast<std::uint32_t>(total_[c][j]), other));
        join_results<Statistic>(&total_[0][j], own, theirs, 1);
      }
    }
    if constexpr (!far) join_own();
    for (int c = 0; c < width; ++c) totals.of[c] = total_[c][0];
    totals.kept = kept_;
    return thread % threads == 0;
  }

 private:
  static constexpr int own = lanes / threads;

  TERSE_HD void join_own() {
    for (int half = own / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) join_results<Statistic>(&total_[0][j], own, &total_[0][j + half], own);
  }
  float total_[static_cast<std::size_t>(width)][static_cast<std::size_t>(own)];
  int kept_ = 0;
};

/// Halvings of a tile that a block of threads shares, into a part for each 16 threads.
inline constexpr int few_halvings = 4;
static_assert(row_threads << few_halvings == block_threads);

/// The sums of a tile that a block of threads shares. All threads evaluate and leave the samples in shared memory; then
/// one warp adds these. The shape of a sum is fixed, and 16 threads that add 64 rows one after the other would leave a
/// device idle if there are few tiles. Only the additions must wait for each other, not the terms.
template <class Statistic>
class HeldSums {
 public:
  struct alignas(16) Shared {
    float sample[reduction_block];
    std::uint64_t keep[reduction_block / lanes];
  };

  TERSE_HD explicit HeldSums(Shared& shared) : shared_(shared) {}
  template <class Space>
  TERSE_HD void begin(const Tile& tile, const Mask<Space>& mask, int thread) {
    begin_ = tile.begin;
    count_ = static_cast<int>(tile.end - tile.begin);
    if (thread * lanes < count_)
      shared_.keep[thread] = mask.word(tile.piece.offset + begin_ + thread * lanes);
  }

  TERSE_HD void note(const Sample& one, bool, int) { bad_ += one.bad != 0; }
  TERSE_HD void count(int kept) { kept_ += static_cast<std::uint32_t>(kept); }
  TERSE_HD void hold(index_t at, const Quad<float>& four) {
    store_quad(shared_.sample + (at - begin_), four);
  }
  TERSE_HD void hold(index_t at, float one) { shared_.sample[at - begin_] = one; }

  /// See OwnSums.
  template <class Block>
  TERSE_HD bool join(Block& block, TileTotals<Statistic>& totals) {
    // The two counts are below 2^16. After the sum, all threads see the samples.
    const std::uint32_t counts = block.sum(kept_ | bad_ << 16);
    if (block.thread() >= 32) return false;
    add_up(block, totals.of);
    totals.of[Statistic::width] = static_cast<float>(counts >> 16);
    totals.kept = counts & 0xFFFF;
    return block.thread() == 0;
  }

 private:
  /// Adds the samples by a warp, whose threads have lanes t and t + 32. Its first thread gets the totals.
  template <class Block>
  TERSE_HD void add_up(Block& block, float* total) const {
    constexpr int halves = lanes / 32, together = 8;
    const int thread = block.thread(), rows = count_ / lanes;
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
        keep[r] = shared_.keep[row + r];
        for (int half = 0; half < halves; ++half)
          sample[r][half] = shared_.sample[(row + r) * lanes + 32 * half + thread];
      }
      TERSE_UNROLL
      for (int r = 0; r < together; ++r)
        for (int half = 0; half < halves; ++half) add(half, sample[r][half], keep[r]);
    }
    TERSE_ROLLED
    for (; row * lanes < count_; ++row)
      for (int half = 0; half < halves; ++half) {
        const int at = row * lanes + 32 * half + thread;
        if (at < count_) add(half, shared_.sample[at], shared_.keep[row]);
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

  Shared& shared_;
  index_t begin_ = 0;                 // of the tile in its piece
  int count_ = 0;                     // of its elements
  std::uint32_t kept_ = 0, bad_ = 0;  // of the thread's elements
};

TERSE_NUMERICS_END

}  // namespace terse::detail
