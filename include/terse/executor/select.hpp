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

// Selection by magnitude on the host: a bound that few elements reach, from a sample or from the largest of a short span's parts, and
// the k largest of those.

namespace terse {
namespace detail {

/// Shorter spans aren't sampled: the sample would be most of them.
inline constexpr index_t sampled_from = 16384;

/// Elements that lie together in a sample: a cache line.
inline constexpr index_t sample_block = 16;

/// Elements in the sample of a span: one in 64, but enough of a short span for its tail to show.
constexpr index_t sample_size(index_t count) {
  return std::max<index_t>(4096, count / 64 / sample_block * sample_block);
}

/// Whether a sample says anything about the k largest that makes them fewer than all.
constexpr bool sampled(index_t count, index_t k) { return count >= sampled_from && k <= count / 4; }

/// Where block b of a sample begins. One block lies somewhere in each stride: tensors have rows and columns,
/// often powers of two wide, and equal distances would see the same columns again and again.
constexpr index_t sample_begin(index_t count, index_t b) {
  const index_t stride = count / (sample_size(count) / sample_block);
  const std::uint64_t random = (static_cast<std::uint64_t>(b) * 0x9E3779B97F4A7C15U) >> 32;
  const auto shift = static_cast<index_t>((random * static_cast<std::uint64_t>(stride - sample_block)) >> 32);
  return (b * stride + shift) / sample_block * sample_block;
}

/// The rank in the sample whose magnitude is the threshold for candidates: above the rank that k elements
/// have, by an eighth, since neighbours are alike in size, and by four standard deviations.
inline index_t sample_rank(index_t count, index_t k) {
  const index_t expected = k * sample_size(count) / count;
  return expected + expected / 8 + static_cast<index_t>(4 * std::sqrt(static_cast<double>(expected))) + 8;
}

/// Candidates that a selection of k has room for: what `sample_rank` leads to, and four deviations more.
constexpr index_t candidates(index_t k) { return k + k / 2 + 4096; }

/// The most parts that a short span is cut into, candidates that it has room for, and sizes that are few.
inline constexpr index_t most_parts = 1024, short_room = 1024, few_sizes = 256;

inline namespace TERSE_INSTRUCTIONS {

/// The k-th largest of n sizes below 2^31; their order is lost. Few are counted against each other, for every branch of a
/// search would be taken or not by chance.
inline std::uint32_t kth_largest(std::uint32_t* sizes, index_t n, index_t k) {
  if (n > few_sizes) {
    std::nth_element(sizes, sizes + (k - 1), sizes + n, std::greater<>{});
    return sizes[k - 1];
  }
  const auto most = static_cast<std::int32_t>(k - 1);
  std::int32_t kth = std::numeric_limits<std::int32_t>::max();
  for (index_t b = 0; b < n; b += lanes) {
    // Behind the last one there are zeros, which count only where less than k sizes are above zero.
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

/// Where at least twice k parts of a short span have enough elements, the k-th largest of their largest magnitudes: k
/// elements and more have or exceed it, and hardly twice as many. 0 where they haven't. Parts are diagonals of a matrix whose
/// rows have an element for each part, and one more: of rows or columns a few may have all that is large.
inline std::uint32_t short_threshold(const float* x, index_t count, index_t k) {
  const index_t size = count / lanes >= 2 * k ? lanes : sample_block, parts = count / size;
  if (parts < 2 * k || parts > most_parts) return 0;
  std::uint32_t largest[most_parts];
  std::fill_n(largest, parts, 0U);
  for (index_t i = 0; i + parts <= count; i += parts + 1)
    for (index_t p = 0; p < parts; ++p) largest[p] = std::max(largest[p], magnitude_bits(x[i + p]));
  return kth_largest(largest, parts, k);
}

/// A magnitude that somewhat more than k elements will have or exceed, by a sample that is copied to `room`.
inline std::uint32_t guess_threshold(const float* x, index_t count, index_t k, float* room,
                                     std::uint32_t* histogram) {
  const index_t size = sample_size(count);
  for (index_t b = 0; b < size / sample_block; ++b)
    std::memcpy(room + b * sample_block, x + sample_begin(count, b), sample_block * sizeof(float));
  return find_cut(room, size, sample_rank(count, k), histogram).magnitude;
}

/// The k largest of a short span, from the few that reach the threshold; false where these are many, or none is known.
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
    // Mostly there is one or none, so that both take the same way: a name that isn't one is overwritten.
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

/// Floats of scratch that `select_top` needs for spans of up to `count` elements and up to k picks: about 3 k
/// and, in long spans, at least count / 64; 32 KiB for counters beside.
constexpr index_t select_scratch(index_t count, index_t k) {
  if (count < detail::sampled_from) return detail::histogram_size;
  const index_t room = detail::candidates(std::min(k, count / 4));
  return detail::histogram_size + room + std::max(room, detail::sample_size(count));
}

/// The same where the executor is the host.
constexpr index_t select_scratch(executor::host, index_t count, index_t k) {
  return select_scratch(count, k);
}
/// A grid's, defined in device/verbs/select.hpp.
template <GridExecutor E>
index_t select_scratch(E executor, index_t count, index_t k);

/// Writes to `positions` the k positions in `values` of the elements of largest magnitude, ascending. Of
/// equal magnitudes the lower positions come first, -0 equals +0. 0 <= k <= values.size() < 2^32; all values
/// are finite. `scratch` holds select_scratch(values.size(), k) floats.
/// One pass over the values and a few over some 1.2 k candidates, where a sample of one element in 64 tells
/// enough about the rest. In spans below 16384 elements two passes, one for the largest of each part, where 2 k parts
/// of 16 elements or more fit into them. For larger k, and where the sample misleads (large elements in few places):
/// four passes, five or six with the attempt. Three where the k-th
/// magnitude is one that a great many elements have.
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
      // Often a great many elements have just this magnitude (0, say), and fewer than k are above it.
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

/// Writes to `positions` the positions in `values` of the elements whose magnitude is at least `threshold`,
/// ascending, the first positions.size() of them at most; returns how many. All values are finite,
/// `threshold` is not NaN. One pass at most.
inline index_t select_above(executor::host, in<executor::host> values, float threshold,
                            out<executor::host, std::uint32_t> positions) {
  if (positions.empty()) return 0;
  // Every magnitude reaches a threshold below 0.
  detail::Note note{std::signbit(threshold) ? 0 : detail::magnitude_bits(threshold), positions.size(),
                    positions.data()};
  detail::walk(values.data(), values.size(), note);
  return note.found;
}
/// The same with the scratch that other executors need: select_scratch(executor, values.size(), positions.size())
/// floats.
inline index_t select_above(executor::host ex, in<executor::host> values, float threshold,
                            out<executor::host>, out<executor::host, std::uint32_t> positions) {
  return select_above(ex, values, threshold, positions);
}

}  // namespace terse
