// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/sparse.hpp"

namespace terse {

/// One position, uniform, from each of k = ceil(ratio n) strata of equal size (up to one element), by the draw
/// that all ranks share: positions are never sent. Every value is picked with the probability that a uniform
/// k-subset gives it, so delta = k / n in expectation; with Scaled picks are multiplied by the stratum's size,
/// which makes it unbiased with omega = ceil(n / k) - 1. Linear: packets of all ranks have the same positions.
/// Source: random-k of Stich et al., NeurIPS 2018, and Konecny and Richtarik 2018; the strata make positions
/// ascend and each of them a function of the draw alone.
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
  index_t most(index_t n) const { return detail::share(ratio, n); }
  static index_t index_bytes(index_t, index_t) { return 0; }
  static index_t floats(index_t) { return 0; }
  static index_t words(index_t) { return 0; }
  double delta(index_t n) const { return 1 / static_cast<double>((n + most(n) - 1) / most(n)); }
  double omega(index_t n) const { return static_cast<double>((n + most(n) - 1) / most(n)) - 1; }

  static index_t begin(index_t n, index_t k, index_t e) {
    __extension__ using wide = unsigned __int128;
    return static_cast<index_t>(static_cast<wide>(n) * static_cast<wide>(e) / static_cast<wide>(k));
  }
  static index_t position(index_t n, index_t k, index_t e, index_t key, Draw shared) {
    const index_t first = begin(n, k, e), size = begin(n, k, e + 1) - first;
    return first + static_cast<index_t>(shared.below(static_cast<std::uint64_t>(size),
                                                     static_cast<std::uint64_t>(key + first)));
  }
  static float factor(index_t n, index_t k, index_t e) {
    return Scaled ? static_cast<float>(begin(n, k, e + 1) - begin(n, k, e)) : 1.0F;
  }
  static const char* fault(const std::byte*, index_t, index_t) { return nullptr; }

  template <Executor E>
  index_t select(E, in<E> values, index_t key, const EncodeContext& context, detail::PickScratch<E>,
                 out<E, std::uint32_t> positions, std::byte*) const {
    const index_t n = values.size(), k = most(n);
    for (index_t e = 0; e < k; ++e)
      positions[e] = static_cast<std::uint32_t>(position(n, k, e, key, context.shared));
    return k;
  }

  class Reader {
   public:
    Reader() = default;
    Reader(const Strata&, const std::byte*, index_t n, index_t k, index_t key, Draw shared)
        : n_(n), k_(k), key_(key), shared_(shared) {
      if (k_ > 0) position_ = Strata::position(n_, k_, 0, key_, shared_);
    }
    index_t position() const { return position_; }
    void next() {
      if (++entry_ < k_) position_ = Strata::position(n_, k_, entry_, key_, shared_);
    }

   private:
    index_t n_ = 0, k_ = 0, key_ = 0, entry_ = 0, position_ = 0;
    Draw shared_ = Draw::shared(0, 0, Purpose::selection);
  };
};

/// Random-k with error feedback: what is picked is sent as it is. Wire: 32 k bits.
using RandomK = Sparse<Strata<false>, Dense, PerSegment>;

/// Random-k without error feedback: what is picked is scaled, hence unbiased.
using UnbiasedRandomK = Sparse<Strata<true>, Dense, PerSegment>;

}  // namespace terse
