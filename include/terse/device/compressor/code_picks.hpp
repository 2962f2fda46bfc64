// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "terse/compressor/pick_coder.hpp"
#include "terse/device/verbs/kernels.hpp"
#include "terse/executor/aligned.hpp"
#include "terse/executor/reduction.hpp"

// Encodes the values of one unit's picks on a grid, in one block of threads. A unit has up to 4096 picks, the block size of a
// reduction.

namespace terse::detail {

TERSE_NUMERICS_BEGIN

/// Coder of picks, with the bytes and the scales that Packed gives a message of as many elements; see
/// executor/host.hpp.
template <class Values>
struct CodePicks {
  using Coder = PickCoder<Values>;
  using Quantizer = typename Values::Quantizer;
  using Statistic = typename Values::Statistic;
  using Scale = typename Values::Scale;
  static constexpr int bits = Quantizer::bits, width = Statistic::width;
  static constexpr int together = block_threads / lanes;  // units whose scales are computed at a time
  struct Shared {
    float lane[static_cast<std::size_t>(width)][block_threads];
    std::uint32_t ignored;  // picks are finite
  };

  /// Encodes the picks `picked(e)`, e from 0 to k - 1, into `wire`, which must be zero. The first pick uses the draw of
  /// arena index `offset`. All threads of the block must call this. Calls committed(e, value) with the value that the
  /// error feedback commits, see CommitPicks.
  template <class Block, class Picked, class Committed>
  TERSE_HD static void code(Block& block, Shared& shared, index_t k, index_t offset, const StepDraw& draw,
                            std::byte* wire, const Picked& picked, const Committed& committed) {
    if constexpr (!std::is_empty_v<Scale>) {
      for (index_t first = 0; first < Coder::scales(k); first += together)
        measure(block, shared, k, first + block.thread() / lanes, wire, picked);
    }
    std::byte* const codes = wire + Coder::scale_bytes(k);
    const Draw random = draw.here();
    const int lane = block.thread() % lanes;
    // All lanes of a warp take part in each turn.
    for (index_t b = block.thread() - lane; b < aligned(k); b += block_threads) {
      const index_t e = b + lane;
      std::uint32_t code = 0;
      if (e < k) {
        Scale scale{};
        if constexpr (!std::is_empty_v<Scale>)
          scale = load_from_wire<Scale>(wire + unit_of(e) * static_cast<index_t>(sizeof(Scale)));
        std::uint32_t bits_of_it = 0;
        if constexpr (Quantizer::stochastic) bits_of_it = random_bits(random, offset + b, lane);
        const float value = picked(e);
        code = typename CoderOf<Quantizer>::type(scale)(value, bits_of_it).code;
        committed(e, Coder::drops_loss ? value : Quantizer::value(code, scale));
      }
      store(block, codes, b, lane, e < k, code);
    }
  }

 private:
  TERSE_HD static constexpr index_t unit_of(index_t e) {
    constexpr index_t size = Values::units().size;
    if constexpr (size != 0) return e / size;
    return 0;
  }
  /// Computes units' scales, with 64 threads per unit; threads beyond the last unit only take part in the waits.
  template <class Block, class Picked>
  TERSE_HD static void measure(Block& block, Shared& shared, index_t k, index_t unit, std::byte* wire,
                               const Picked& picked) {
    constexpr index_t size = Values::units().size;
    const int thread = block.thread(), lane = thread % lanes;
    const index_t begin = unit * size, behind = size == 0 ? k : begin + size, end = behind < k ? behind : k;
    if (thread == 0) shared.ignored = 0;
    float total[static_cast<std::size_t>(width)];
    for (int c = 0; c < width; ++c) total[c] = Statistic::initial;
    if (unit < Coder::scales(k))
      for (index_t e = begin + lane; e < end; e += lanes) {
        float term[Statistic::width];
        Statistic::terms(picked(e), term);
        join_terms<Statistic>(total, 1, term, 1);
      }
    for (int c = 0; c < width; ++c) shared.lane[c][thread] = total[c];
    block.sync();
    for (int half = lanes / 2; half > 0; half /= 2) {
      if (lane < half)
        join_terms<Statistic>(&shared.lane[0][thread], block_threads, &shared.lane[0][thread + half],
                              block_threads);
      block.sync();
    }
    if (lane == 0 && unit < Coder::scales(k)) {
      float totals[static_cast<std::size_t>(width) + 1];
      for (int c = 0; c < width; ++c)
        totals[c] = Values::units().whole ? Statistic::initial : shared.lane[c][thread];
      if (Values::units().whole) join_terms<Statistic>(totals, 1, &shared.lane[0][thread], block_threads);
      totals[width] = 0;
      const Scale scale = finish_unit<Statistic>(totals, end - begin, &shared.ignored);
      store_words(wire + unit * static_cast<index_t>(sizeof(Scale)), scale);
    }
    block.sync();
  }
  /// Stores a scale; scales are adjacent, aligned as floats are.
  TERSE_HD static void store_words(std::byte* to, const Scale& scale) {
    std::uint32_t words[sizeof(Scale) / 4];
    std::memcpy(words, &scale, sizeof scale);
    for (const std::uint32_t word : words) {
      store_aligned(to, word);
      to += sizeof word;
    }
  }
  /// Returns the random bits of lane `lane` in the row that begins with arena index `first`.
  TERSE_HD static std::uint32_t random_bits(const Draw& draw, index_t first, int lane) {
    const auto words = draw.block(static_cast<std::uint64_t>(first / 8 + lane / 8));
    std::uint32_t both = words[0];
    for (std::size_t w = 1; w < words.size(); ++w)  // an index would force `words` into memory
      if (static_cast<std::size_t>(lane % 8 / 2) == w) both = words[w];
    return lane % 2 == 0 ? both & 0xFFFF : both >> 16;
  }
  template <class Block>
  TERSE_HD static void store(Block& block, std::byte* codes, index_t b, int lane, bool there,
                             std::uint32_t code) {
    if constexpr (bits < 8) {
      for (int bit = 0; bit < bits; ++bit) {
        const std::uint32_t word = block.ballot((code >> bit & 1) != 0);
        if (lane % 32 == bit) store_aligned(codes + b / 8 * bits + 8 * bit + lane / 32 * 4, word);
      }
    } else {
      using Element = CodeElement<bits>;
      if (there)
        store_aligned(codes + (b + lane) * static_cast<index_t>(sizeof(Element)), static_cast<Element>(code));
    }
  }
};

/// Coder that writes picks as fp32.
template <>
struct CodePicks<Dense> {
  struct Shared {};

  template <class Block, class Picked, class Committed>
  TERSE_HD static void code(Block& block, Shared&, index_t k, index_t, const StepDraw&, std::byte* wire,
                            const Picked& picked, const Committed& committed) {
    for (index_t e = block.thread(); e < k; e += block_threads) {
      const float value = picked(e);
      reinterpret_cast<float*>(wire)[e] = value;
      committed(e, value);
    }
  }
};

TERSE_NUMERICS_END

}  // namespace terse::detail
