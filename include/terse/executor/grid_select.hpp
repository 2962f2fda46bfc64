// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "terse/executor/atomic.hpp"
#include "terse/executor/grid.hpp"

// Selection by magnitude on a grid, with the host's picks: see executor/select.hpp. What is picked is a function of the
// values alone, and all counts are integers, so that no order of threads shows.

namespace terse {
namespace detail {

/// Where a radix selection stands: the k-th largest magnitude is `magnitude` or above, and `ties` of those that are
/// belong to the k. In the end it is that magnitude.
struct GridCut {
  std::uint32_t magnitude, ties;
};

inline constexpr int radix_bins = 2048;
/// Elements that one block counts before it adds its counters to everybody's.
inline constexpr index_t counted_together = 16384;
/// Elements that one block places.
inline constexpr index_t placed_together = 4096;

TERSE_HD inline std::uint32_t magnitude_word(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU;
}

/// Scratch of a selection among `count` elements, which starts at a multiple of 8 bytes.
template <class E>
struct SelectScratch {
  GridCut* cut;
  std::uint32_t* histogram;
  std::uint64_t* counts;  // one for each block that places, and their sum
  void* rest;

  SelectScratch(float* scratch, index_t count)
      : cut(reinterpret_cast<GridCut*>(scratch)),
        histogram(reinterpret_cast<std::uint32_t*>(scratch + 2)),
        counts(reinterpret_cast<std::uint64_t*>(scratch + 2 + radix_bins)),
        rest(scratch + 2 + radix_bins + 2 * numbers(count)) {}

  static index_t numbers(index_t count) { return blocks_for(count, placed_together) + 1; }
  static index_t floats(E ex, index_t count) {
    return 2 + radix_bins + 2 * numbers(count) + (ex.exclusive_sum_bytes(numbers(count)) + 3) / 4;
  }
};

struct BeginCutKernel {
  static constexpr bool cooperative = false;
  struct Shared {};
  GridCut* cut;
  std::uint32_t* histogram;
  std::uint32_t k;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    for (int bin = block.thread(); bin < radix_bins; bin += block_threads) histogram[bin] = 0;
    if (block.thread() == 0) *cut = {0, k};
  }
};

/// Counts, by their bits from `shift` on, the magnitudes from the cut's on, as far as the histogram has bins for them.
struct CountDigitsKernel {
  static constexpr bool cooperative = true;
  struct Shared {
    std::uint32_t count[radix_bins];
  };
  const float* values;
  index_t count;
  const GridCut* cut;
  std::uint32_t* histogram;
  int shift, bins;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    for (int bin = block.thread(); bin < bins; bin += block_threads) shared.count[bin] = 0;
    block.sync();
    const std::uint32_t least = cut->magnitude;
    const index_t begin = block.index() * counted_together;
    const index_t end = begin + counted_together < count ? begin + counted_together : count;
    for (index_t i = begin + block.thread(); i < end; i += block_threads) {
      // What lies below wraps to far above.
      const std::uint32_t digit = (magnitude_word(values[i]) - least) >> shift;
      if (digit < static_cast<std::uint32_t>(bins)) atomic_add(&shared.count[digit], 1);
    }
    block.sync();
    for (int bin = block.thread(); bin < bins; bin += block_threads)
      if (shared.count[bin] != 0) atomic_add(&histogram[bin], shared.count[bin]);
  }
};

/// Finds the digit of the k-th largest, and leaves the histogram empty. One block; each thread has eight bins, from the
/// highest on.
struct FindDigitKernel {
  static constexpr bool cooperative = true;
  static constexpr int own = radix_bins / block_threads;
  struct Shared {};
  GridCut* cut;
  std::uint32_t* histogram;
  int shift;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    int bin = radix_bins - 1 - block.thread() * own;
    std::uint32_t* const mine = histogram + bin;  // and downwards
    const GridCut now = *cut;
    std::uint32_t sum = 0, all = 0;
    for (int b = 0; b < own; ++b) sum += mine[-b];
    const std::uint32_t before = block.exclusive_sum(sum, all);
    if (before < now.ties && now.ties - before <= sum) {
      std::uint32_t left = now.ties - before;
      while (histogram[bin] < left) left -= histogram[bin--];
      *cut = {now.magnitude + (static_cast<std::uint32_t>(bin) << shift), left};
    }
    for (int b = 0; b < own; ++b) mine[-b] = 0;
  }
};

/// What becomes of an element.
enum class Pick : std::uint8_t { no, tie, yes };

/// The k of largest magnitude.
struct PickLargest {
  const float* values;
  const GridCut* place;
  GridCut cut{};

  TERSE_HD void begin() { cut = *place; }
  TERSE_HD std::uint32_t ties() const { return cut.ties; }
  TERSE_HD Pick operator()(index_t i) const {
    const std::uint32_t word = magnitude_word(values[i]);
    return word > cut.magnitude ? Pick::yes : word == cut.magnitude ? Pick::tie : Pick::no;
  }
};

template <class F>
concept BeginsPicking = requires(F& f) {
  f.begin();
};

/// Those of which f says so.
template <class F>
struct PickWhere {
  F f;

  TERSE_HD void begin() {
    if constexpr (BeginsPicking<F>) f.begin();
  }
  TERSE_HD static std::uint32_t ties() { return 0; }
  TERSE_HD Pick operator()(index_t i) const { return f(i) ? Pick::yes : Pick::no; }
};

struct ReachesMagnitude {
  const float* values;
  std::uint32_t least;
  TERSE_HD bool operator()(index_t i) const { return magnitude_word(values[i]) >= least; }
};

/// Picks, in the upper half, and ties of each block's elements.
template <class F>
struct CountPicksKernel {
  static constexpr bool cooperative = true;
  struct Shared {};
  F f_;
  index_t count;
  std::uint64_t* counts;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared&) const {
    F f = f_;
    f.begin();
    std::uint64_t both = 0;
    const index_t begin = block.index() * placed_together;
    const index_t end = begin + placed_together < count ? begin + placed_together : count;
    for (index_t i = begin + block.thread(); i < end; i += block_threads) {
      const Pick pick = f(i);
      both += pick == Pick::yes ? std::uint64_t{1} << 32 : pick == Pick::tie ? 1 : 0;
    }
    both = block.sum(both);
    if (block.thread() == 0) counts[block.index()] = both;
  }
};

/// Writes the positions of the picks and of the first ties, ascending, by what `before` counts in the blocks before, from wherever.
/// One block alone has nullptr there, and says itself how many there are.
template <class F>
struct PlacePicksKernel {
  static constexpr bool cooperative = true;
  static constexpr int own = placed_together / block_threads;
  struct Shared {
    Pick pick[placed_together];
  };
  F f_;
  index_t count;
  const std::uint64_t* before;
  std::uint32_t* positions;
  index_t room;
  std::uint64_t* picked;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    const int thread = block.thread();
    F f = f_;
    f.begin();
    const index_t begin = block.index() * placed_together;
    for (int e = thread; e < placed_together; e += block_threads)
      shared.pick[e] = begin + e < count ? f(begin + e) : Pick::no;
    block.sync();
    const Pick* const mine = shared.pick + thread * own;
    std::uint32_t both = 0, all = 0;  // picks, in the upper half, and ties
    for (int e = 0; e < own; ++e) both += mine[e] == Pick::yes ? 1U << 16 : mine[e] == Pick::tie ? 1U : 0U;
    both = block.exclusive_sum(both, all);
    const std::uint64_t here = before == nullptr ? 0 : before[block.index()] - before[0];
    if (before == nullptr && thread == 0) *picked = std::uint64_t{all >> 16} << 32 | (all & 0xFFFF);
    index_t picks = static_cast<index_t>(here >> 32) + (both >> 16);
    index_t ties = static_cast<index_t>(here & 0xFFFFFFFF) + (both & 0xFFFF);
    const index_t wanted = f.ties();
    for (int e = 0; e < own; ++e) {
      const Pick pick = mine[e];
      if (pick == Pick::no) continue;
      const index_t place = picks + (ties < wanted ? ties : wanted);
      if ((pick == Pick::yes || ties < wanted) && place < room)
        positions[place] = static_cast<std::uint32_t>(begin + thread * own + e);
      (pick == Pick::yes ? picks : ties) += 1;
    }
  }
};

/// select_top where one block places all: the kernels above one after the other, with everything but the values in shared memory.
struct SelectFewKernel {
  static constexpr bool cooperative = true;
  using Place = PlacePicksKernel<PickLargest>;
  /// Not wanted any more when positions are written: these may come to the same place.
  struct Counters {
    std::uint32_t histogram[radix_bins];
    CountDigitsKernel::Shared digits;
  };
  struct Rest {
    GridCut cut;
    std::uint64_t picked;
    Place::Shared place;
  };
  struct Shared : Rest {
    Counters counters;
  };
  const float* values;
  index_t count;
  std::uint32_t k;
  std::uint32_t* positions;

  template <class Block>
  TERSE_HD void operator()(Block& block, Shared& shared) const {
    (*this)(block, shared, shared.counters);
  }
  template <class Block>
  TERSE_HD void operator()(Block& block, Rest& shared, Counters& counters) const {
    GridCut* const cut = &shared.cut;
    BeginCutKernel::Shared none;
    FindDigitKernel::Shared nothing;
    BeginCutKernel{cut, counters.histogram, k}(block, none);
    block.sync();
    TERSE_ROLLED
    for (int shift = 20; shift >= 0; shift -= 10) {
      const int bins = shift == 20 ? radix_bins : radix_bins / 2;
      CountDigitsKernel{values, count, cut, counters.histogram, shift, bins}(block, counters.digits);
      block.sync();
      FindDigitKernel{cut, counters.histogram, shift}(block, nothing);
      block.sync();
    }
    Place{PickLargest{values, cut}, count, nullptr, positions, k, &shared.picked}(block, shared.place);
  }
};

/// The positions of the first `positions.size()` elements that f picks, ascending. Behind the counters of its blocks
/// the scratch then holds how many f picks, in the upper half of a word.
template <GridExecutor E, class F>
void place_picks(E ex, F f, index_t count, const SelectScratch<E>& scratch,
                 view<std::uint32_t, typename E::memory> positions) {
  const index_t blocks = blocks_for(count, placed_together);
  if (blocks == 0) return;
  if (blocks > 1) {
    ex.launch(CountPicksKernel<F>{f, count, scratch.counts}, blocks);
    ex.exclusive_sum(scratch.counts, blocks + 1, scratch.rest);
  }
  ex.launch(PlacePicksKernel<F>{f, count, blocks > 1 ? scratch.counts : nullptr, positions.data(),
                                positions.size(), scratch.counts + blocks},
            blocks);
}

}  // namespace detail

/// Floats of scratch that `select_top`, `select_above` and `list_picks` need for spans of up to `count` elements.
template <GridExecutor E>
index_t select_scratch(E ex, index_t count, index_t) {
  return detail::SelectScratch<E>::floats(ex, count);
}

/// See the host's. Five passes, or one launch for up to 4096 elements; nothing waits.
template <GridExecutor E>
void select_top(E ex, view<const float, typename E::memory> values, index_t k,
                view<float, typename E::memory> floats, view<std::uint32_t, typename E::memory> positions) {
  if (k == 0) return;
  const index_t count = values.size();
  if (count <= detail::placed_together) {
    ex.launch(detail::SelectFewKernel{values.data(), count, static_cast<std::uint32_t>(k), positions.data()},
              1);
    return;
  }
  const detail::SelectScratch<E> scratch(floats.data(), count);
  ex.launch(detail::BeginCutKernel{scratch.cut, scratch.histogram, static_cast<std::uint32_t>(k)}, 1);
  for (const int shift : {20, 10, 0}) {
    ex.launch(detail::CountDigitsKernel{values.data(), count, scratch.cut, scratch.histogram, shift,
                                        shift == 20 ? detail::radix_bins : 1024},
              detail::blocks_for(count, detail::counted_together));
    ex.launch(detail::FindDigitKernel{scratch.cut, scratch.histogram, shift}, 1);
  }
  detail::place_picks(ex, detail::PickLargest{values.data(), scratch.cut}, count, scratch,
                      positions.part(0, k));
}

/// The positions, ascending, of the elements of `count` for which f says so, positions.size() at most.
/// f may have `begin()`, called before.
template <GridExecutor E, class F>
void list_picks(E ex, F f, index_t count, view<float, typename E::memory> floats,
                view<std::uint32_t, typename E::memory> positions) {
  detail::place_picks(ex, detail::PickWhere<F>{f}, count, detail::SelectScratch<E>(floats.data(), count),
                      positions);
}

/// See the host's. Two passes; the host waits for the number.
template <GridExecutor E>
index_t select_above(E ex, view<const float, typename E::memory> values, float threshold,
                     view<float, typename E::memory> floats,
                     view<std::uint32_t, typename E::memory> positions) {
  if (positions.empty() || values.empty()) return 0;
  const detail::SelectScratch<E> scratch(floats.data(), values.size());
  const std::uint32_t least = std::signbit(threshold) ? 0 : detail::magnitude_word(threshold);
  list_picks(ex, detail::ReachesMagnitude{values.data(), least}, values.size(), floats, positions);
  std::uint64_t found = 0;
  fetch(ex, in<E, std::uint64_t>(scratch.counts + scratch.numbers(values.size()) - 1, 1),
        view<std::uint64_t>(&found, 1));
  return std::min(static_cast<index_t>(found >> 32), positions.size());
}

}  // namespace terse
