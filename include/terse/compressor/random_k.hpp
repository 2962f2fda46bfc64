// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sparse.hpp"

namespace terse {

/// A selection of one uniformly random position from each of k = ceil(ratio n) strata of equal size (up to one
/// element). All ranks share the draw, so positions are never sent. Every value is picked with probability 1 / (size of
/// its stratum). This is k / n if k divides n, and otherwise at least delta = 1 / ceil(n / k). With Scaled, picks are
/// multiplied by the stratum's size, which makes it unbiased with omega = ceil(n / k) - 1. Linear: the packets of all
/// ranks have the same positions. Source: random-k of Stich et al., NeurIPS 2018, and Konecny and Richtarik 2018. The
/// strata make positions ascend, and each position follows from the draw alone.
template <bool Scaled>
struct Strata {
  static constexpr bool variable = false;
  static constexpr bool unbiased = Scaled;
  static constexpr bool contractive = !Scaled;
  static constexpr bool single_stage = Scaled;

  double ratio = 0.01;  ///< in (0, 1]

  void check() const { detail::check_ratio("ratio", ratio); }
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("ratio", ratio);
  }
  TERSE_HD index_t most(index_t n) const { return detail::share_of(ratio, n); }
  TERSE_HD static index_t index_bytes(index_t, index_t) { return 0; }
  template <Executor E>
  static index_t floats(E, index_t) {
    return 0;
  }
  static index_t words(index_t) { return 0; }
  double delta(index_t n) const { return 1 / static_cast<double>((n + most(n) - 1) / most(n)); }
  double omega(index_t n) const { return static_cast<double>((n + most(n) - 1) / most(n)) - 1; }

  /// Returns the first element of stratum e; n, e < 2^32.
  TERSE_HD static index_t begin(index_t n, index_t k, index_t e) {
    return static_cast<index_t>(static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(e) /
                                static_cast<std::uint64_t>(k));
  }
  /// Returns the pick of stratum e from the 64 random bits of index key + e.
  TERSE_HD static index_t position(index_t n, index_t k, index_t e, std::uint64_t bits) {
    const index_t first = begin(n, k, e);
    return pick(first, begin(n, k, e + 1) - first, bits);
  }
  TERSE_HD static index_t pick(index_t first, index_t size, std::uint64_t bits) {
    __extension__ using wide = unsigned __int128;
    return first + static_cast<index_t>((wide{bits} * static_cast<std::uint64_t>(size)) >> 64);
  }
  TERSE_HD static std::uint32_t drawn(index_t n, index_t k, index_t key, index_t e, const StepDraw& shared) {
    const auto words = shared.here().block(static_cast<std::uint64_t>(key + e) / 2);
    const bool odd = e % 2 != 0;
    const std::uint64_t bits =
        odd ? words[2] | std::uint64_t{words[3]} << 32 : words[0] | std::uint64_t{words[1]} << 32;
    return static_cast<std::uint32_t>(position(n, k, e, bits));
  }
  TERSE_HD static float factor(index_t n, index_t k, index_t e) {
    return Scaled ? static_cast<float>(begin(n, k, e + 1) - begin(n, k, e)) : 1.0F;
  }
  static const char* fault(const std::byte*, index_t, index_t) { return nullptr; }

  /// The draw of two strata, which share a block of random words; `key` is even.
  struct DrawTwo {
    index_t n, k, key;
    StepDraw shared;
    std::uint32_t* positions;
    TERSE_HD void operator()(index_t pair) const {
      const index_t e = 2 * pair;
      const auto words = shared.here().block(static_cast<std::uint64_t>(key + e) / 2);
      positions[e] = static_cast<std::uint32_t>(position(n, k, e, words[0] | std::uint64_t{words[1]} << 32));
      if (e + 1 < k)
        positions[e + 1] =
            static_cast<std::uint32_t>(position(n, k, e + 1, words[2] | std::uint64_t{words[3]} << 32));
    }
  };

  template <GridExecutor E>
  static void check(E, const detail::Arrived&, index_t, const detail::Report&) {}

  template <Executor E>
  index_t select(E executor, in<E> values, index_t key, const EncodeContext& context, PickScratch<E>,
                 out<E, std::uint32_t> positions, std::byte*) const {
    const index_t n = values.size(), k = most(n);
    draw(executor, n, k, key, context.shared, positions);
    return k;
  }
  template <GridExecutor E>
  static Positions::List list(E executor, const detail::Arrived& arrived, index_t n, index_t key,
                              const StepDraw& shared, PickScratch<E>, out<E, std::uint32_t> positions) {
    draw(executor, n, arrived.picks, key, shared, positions);
    return Positions::List(positions.data());
  }

  class Reader {
   public:
    Reader() = default;
    Reader(const Strata&, const std::byte*, index_t n, index_t k, index_t key, Draw shared)
        : n_(n), k_(k), key_(key), shared_(shared) {
      if (k_ > 0) seek(0);
    }
    index_t position() const {
      const auto half = static_cast<std::size_t>(entry_ % 2 * 2);
      return pick(first_, behind_ - first_, words_[half] | std::uint64_t{words_[half + 1]} << 32);
    }
    void next() {
      ++entry_;
      first_ = behind_;
      behind_ = begin(n_, k_, entry_ + 1);
      if (entry_ % 2 == 0) draw_pair();
    }
    void seek(index_t entry) {
      entry_ = entry;
      first_ = begin(n_, k_, entry);
      behind_ = begin(n_, k_, entry + 1);
      draw_pair();
    }

   private:
    void draw_pair() { words_ = shared_.block(static_cast<std::uint64_t>(key_ + entry_) / 2); }

    index_t n_ = 0, k_ = 0, key_ = 0, entry_ = 0, first_ = 0, behind_ = 0;
    Draw shared_ = Draw::shared(0, 0, Purpose::selection);
    std::array<std::uint32_t, 4> words_{};  // of a pair of strata
  };

 private:
  template <Executor E>
  static void draw(E executor, index_t n, index_t k, index_t key, StepDraw shared,
                   out<E, std::uint32_t> positions) {
    if constexpr (!GridExecutor<E>) shared.now = nullptr;  // uses the step for which the draw was made
    for_each_entry(executor, (k + 1) / 2, DrawTwo{n, k, key, shared, positions.data()});
  }
};

/// Random-k with error feedback: picks are sent as they are. Wire: 32 k bits.
using RandomK = Sparse<Strata<false>, Dense, PerSegment>;

/// Random-k without error feedback: picks are scaled, hence unbiased.
using UnbiasedRandomK = Sparse<Strata<true>, Dense, PerSegment>;

}  // namespace terse
