// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <new>

#include "terse/core/config.hpp"
#include "terse/core/view.hpp"
#include "terse/executor/magnitudes.hpp"

// Selection by magnitude on the host. It finds a bound that few elements reach, from a sample or from the largest
// elements of a short span's parts, and then the k largest of these elements.

namespace terse {
namespace detail {

/// The minimum length of a sampled span: in shorter ones the sample would be most of the elements.
inline constexpr index_t sampled_from = 16384;

/// The number of consecutive elements in a sample: a cache line.
inline constexpr index_t sample_block = 16;

/// Returns the number of elements in the sample of a span: one in 64, but in a short span enough to show its tail.
constexpr index_t sample_size(index_t count) {
  return std::max<index_t>(4096, count / 64 / sample_block * sample_block);
}

/// Checks whether a sample can reduce the candidates for the k largest.
constexpr bool sampled(index_t count, index_t k) { return count >= sampled_from && k <= count / 4; }

/// Returns the first element of block b of a sample. Each stride has one block at a random place. Tensors have rows and
/// columns, often with powers of two as widths, so equal distances would select the same columns again and again.
constexpr index_t sample_begin(index_t count, index_t b) {
  const index_t stride = count / (sample_size(count) / sample_block);
  const std::uint64_t random = (static_cast<std::uint64_t>(b) * 0x9E3779B97F4A7C15U) >> 32;
  const auto shift = static_cast<index_t>((random * static_cast<std::uint64_t>(stride - sample_block)) >> 32);
  return (b * stride + shift) / sample_block * sample_block;
}

/// Returns the rank in the sample whose magnitude is the threshold for candidates. It exceeds the expected rank of the
/// k-th largest element by an eighth, since neighbours have similar magnitudes, and by four standard deviations.
inline index_t sample_rank(index_t count, index_t k) {
  const index_t expected = k * sample_size(count) / count;
  return expected + expected / 8 + static_cast<index_t>(4 * std::sqrt(static_cast<double>(expected))) + 8;
}

/// Returns the number of candidates for which a selection of k has room: those expected from `sample_rank`, and four
/// standard deviations more.
constexpr index_t candidates(index_t k) { return k + k / 2 + 4096; }

/// Maximum number of parts of a short span, number of candidates for which it has room, and maximum number of sizes
/// that are compared pairwise.
inline constexpr index_t most_parts = 1024, short_room = 1024, few_sizes = 256;

inline namespace TERSE_INSTRUCTIONS {

/// Returns the k-th largest of n sizes below 2^31; their order is lost. Few sizes are compared pairwise, since every
/// branch of a search would be unpredictable.
inline std::uint32_t kth_largest(std::uint32_t* sizes, index_t n, index_t k) {
  if (n > few_sizes) {
    std::nth_element(sizes, sizes + (k - 1), sizes + n, std::greater<>{});
    return sizes[k - 1];
  }
  const auto most = static_cast<std::int32_t>(k - 1);
  std::int32_t kth = std::numeric_limits<std::int32_t>::max();
  for (index_t b = 0; b < n; b += lanes) {
    // After the last size there are zeros, which count only if fewer than k sizes are above zero.
    alignas(64) std::int32_t size[lanes] = {}, larger[lanes] = {};
    std::memcpy(size, sizes + b, static_cast<std::size_t>(std::min<index_t>(lanes, n - b)) * sizeof(float));
    for (index_t i = 0; i < n; ++i) {
      const auto other = static_cast<std::int32_t>(sizes[i]);
      for (int l = 0; l < lanes; ++l) larger[l] += other > size[l] ? 1 : 0;
    }
    for (int l = 0; l < lanes; ++l) kth = std::min(kth, larger[l] <= most ? size[l] : kth);
  }
  return static_cast<std::uint32_t>(kth);
}

/// Returns the k-th largest of the largest magnitudes of a short span's parts: at least k elements have or exceed it,
/// and rarely twice as many. Returns 0 unless there are at least 2 k parts with enough elements. The parts are
/// diagonals of a matrix whose rows have one element more than there are parts, since a few rows or columns may
/// contain all large elements.
inline std::uint32_t short_threshold(const float* x, index_t count, index_t k) {
  const index_t size = count / lanes >= 2 * k ? lanes : sample_block, parts = count / size;
  if (parts < 2 * k || parts > most_parts) return 0;
  std::uint32_t largest[most_parts];
  std::fill_n(largest, parts, 0U);
  for (index_t i = 0; i + parts <= count; i += parts + 1)
    for (index_t p = 0; p < parts; ++p) largest[p] = std::max(largest[p], magnitude_bits(x[i + p]));
  return kth_largest(largest, parts, k);
}

/// Guesses, from a sample that is copied to `room`, a magnitude that somewhat more than k elements have or exceed.
inline std::uint32_t guess_threshold(const float* x, index_t count, index_t k, float* room,
                                     std::uint32_t* histogram) {
  const index_t size = sample_size(count);
  for (index_t b = 0; b < size / sample_block; ++b)
    std::memcpy(room + b * sample_block, x + sample_begin(count, b), sample_block * sizeof(float));
  return find_cut(room, size, sample_rank(count, k), histogram).magnitude;
}

/// Selects the k largest of a short span from the few that reach the threshold. Returns false if these are many, or if
/// there is no threshold.
inline bool select_few(const float* x, index_t count, index_t k, float* scratch, std::uint32_t* positions) {
  const std::uint32_t threshold = short_threshold(x, count, k);
  if (threshold == 0) return false;
  auto* const names = ::new (scratch) std::uint32_t[static_cast<std::size_t>(short_room)];
  auto* const sizes = ::new (scratch + short_room) std::uint32_t[static_cast<std::size_t>(short_room)];
  auto* const sorted = ::new (scratch + 2 * short_room) std::uint32_t[static_cast<std::size_t>(short_room)];
  index_t found = 0;
  for (index_t b = 0; b < count; b += lanes) {
    std::uint64_t word = at_least(x + b, count - b, threshold);
    if (found + ones_in(word) + 1 >= short_room) return false;
    // Usually there is one or none, so both take the same path: a name without a set bit is overwritten.
    do {
      names[found] = static_cast<std::uint32_t>(b + first_one_in(word));
      found += word != 0 ? 1 : 0;
      word &= word - 1;
    } while (word != 0);
  }
  for (index_t c = 0; c < found; ++c) sorted[c] = sizes[c] = magnitude_bits(x[names[c]]);
  const std::uint32_t least = kth_largest(sorted, found, k);
  index_t ties = k;
  for (index_t c = 0; c < found; ++c) ties -= sizes[c] > least ? 1 : 0;
  for (index_t c = 0, taken = 0; taken < k; ++c) {
    const bool tie = sizes[c] == least && ties > 0;
    ties -= tie ? 1 : 0;
    positions[taken] = names[c];
    taken += tie || sizes[c] > least ? 1 : 0;
  }
  return true;
}

}  // namespace TERSE_INSTRUCTIONS
}  // namespace detail

/// Returns the floats of scratch that `select_top` needs for spans of up to `count` elements and up to k picks. These
/// are about 3 k and, in long spans, at least count / 64; 32 KiB more for counters.
constexpr index_t select_scratch(index_t count, index_t k) {
  if (count < detail::sampled_from) return detail::histogram_size;
  const index_t room = detail::candidates(std::min(k, count / 4));
  return detail::histogram_size + room + std::max(room, detail::sample_size(count));
}

/// Returns the floats of scratch that `select_top` needs on the host.
constexpr index_t select_scratch(executor::host, index_t count, index_t k) {
  return select_scratch(count, k);
}
/// Returns the floats of scratch that `select_top` needs on a grid executor; defined in device/verbs/select.hpp.
template <GridExecutor E>
index_t select_scratch(E executor, index_t count, index_t k);

/// Writes to `positions` the k positions in `values` of the elements of largest magnitude, ascending. Of equal
/// magnitudes the lower positions come first; -0 equals +0. 0 <= k <= values.size() < 2^32; all values are finite.
/// `scratch` holds select_scratch(values.size(), k) floats. Cost: one pass over the values and a few over about 1.2 k
/// candidates, if a sample of one element in 64 represents the rest. In spans below 16384 elements two passes (one for
/// the largest of each part), if they have room for 2 k parts of at least 16 elements. For larger k, and if the sample
/// is misleading (large elements in few places): four passes, with the attempt five or six. If the k-th magnitude is
/// that of very many elements: three passes.
inline void select_top(executor::host, in<executor::host> values, index_t k,
                       out<executor::host, float> scratch, out<executor::host, std::uint32_t> positions) {
  if (k == 0) return;
  const float* x = values.data();
  const index_t count = values.size();
  auto* histogram = ::new (scratch.data()) std::uint32_t[detail::histogram_size];
  if (detail::sampled(count, k)) {
    const index_t room = detail::candidates(k);
    float* places = scratch.data() + detail::histogram_size;
    float* candidates = places + room;
    const std::uint32_t threshold = detail::guess_threshold(x, count, k, candidates, histogram);
    auto* names = ::new (places) std::uint32_t[static_cast<std::size_t>(room)];
    detail::Note note{threshold, room, names, candidates};
    detail::walk(x, count, note);
    if (note.found == room) {
      // Often very many elements have exactly this magnitude (0, for example), and fewer than k exceed it.
      note = {threshold + 1, room, names, candidates};
      detail::walk(x, count, note);
      if (note.found < k) {
        detail::Take take{{threshold, k - note.found}, k, nullptr, positions.data()};
        detail::walk(x, count, take);
        return;
      }
    }
    if (note.found >= k && note.found < room) {
      detail::Take take{detail::find_cut(candidates, note.found, k, histogram), k, names, positions.data()};
      detail::walk(candidates, note.found, take);
      return;
    }
  }
  if (count < detail::sampled_from && detail::select_few(x, count, k, scratch.data(), positions.data()))
    return;
  detail::Take take{detail::find_cut(x, count, k, histogram), k, nullptr, positions.data()};
  detail::walk(x, count, take);
}

/// Writes to `positions` the ascending positions in `values` of the elements whose magnitude is at least `threshold`,
/// at most the first positions.size() of them. Returns their number. All values must be finite, and `threshold` must
/// not be NaN. One pass at most.
inline index_t select_above(executor::host, in<executor::host> values, float threshold,
                            out<executor::host, std::uint32_t> positions) {
  if (positions.empty()) return 0;
  // Every magnitude reaches a threshold below 0.
  detail::Note note{std::signbit(threshold) ? 0 : detail::magnitude_bits(threshold), positions.size(),
                    positions.data()};
  detail::walk(values.data(), values.size(), note);
  return note.found;
}
/// Ignores the scratch that other executors need: select_scratch(executor, values.size(), positions.size()) floats.
inline index_t select_above(executor::host ex, in<executor::host> values, float threshold,
                            out<executor::host>, out<executor::host, std::uint32_t> positions) {
  return select_above(ex, values, threshold, positions);
}

}  // namespace terse
