// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "terse/core/error.hpp"
#include "terse/core/half.hpp"
#include "terse/core/layout.hpp"
#include "terse/core/view.hpp"
#include "terse/executor/concept.hpp"

// A search of arenas for values that are not finite, for errors that name them.

namespace terse::detail {

/// A value that is not finite, and its place. It has no padding, so that ranks can send it.
struct NonFiniteValue {
  enum class Arena : std::int32_t { unknown, gradient, parameters };
  Arena arena = Arena::unknown;
  float value = 0;
  index_t segment = 0, element = 0;  ///< place; elements count from the segment's start
};

/// Checks whether a parameter is neither NaN nor infinite.
template <Number P>
constexpr bool is_number(P x) {
  constexpr auto ones = static_cast<std::uint32_t>((1 << P::exponent_bits) - 1) << P::mantissa_bits;
  return (x.bits & ones) != ones;
}
constexpr bool is_number(float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7F800000U) != 0x7F800000U; }

/// Returns the place of the first of `count` elements that is NaN or infinite, or `count` if none is.
template <Number P>
index_t first_bad(const P* values, index_t count) {
  // Blocks of constant length without an early exit are vectorized at -O2.
  constexpr index_t block = 256;
  index_t from = 0;
  for (; from + block <= count; from += block) {
    std::uint32_t bad = 0;
    for (index_t i = 0; i < block; ++i) bad |= static_cast<std::uint32_t>(!is_number(values[from + i]));
    if (bad != 0) break;
  }
  while (from < count && is_number(values[from])) ++from;
  return from;
}

/// Finds the first element of an arena whose product with `scale` is NaN or larger than `most` in magnitude. The arena is in the
/// memory of the host or of a device; a device's is copied part by part.
template <Number P, class Space>
TERSE_COLD bool find_value(const Layout& layout, view<const P, Space> arena, float scale, float most,
                           NonFiniteValue& found) {
  buffer<P> here(std::is_same_v<Space, memory::host> ? 0 : index_t{1} << 16);
  const auto& segments = layout.segments();
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const index_t at_once = here.size() > 0 ? here.size() : segments[s].count;
    for (index_t first = 0; first < segments[s].count; first += at_once) {
      const index_t count = std::min(at_once, segments[s].count - first);
      const view<const P, Space> part = arena.part(segments[s].offset + first, count);
      const P* values;
      if constexpr (std::is_same_v<Space, memory::host>) {
        values = part.data();
      } else {
        download(part, here.all().part(0, count));
        values = here.data();
      }
      for (index_t i = 0; i < count; ++i) {
        const float value = widened(values[i]);
        if (std::abs(value * scale) <= most) continue;  // false for NaN
        found.value = value;
        found.segment = static_cast<index_t>(s);
        found.element = first + i;
        return true;
      }
    }
  }
  return false;
}

/// Returns a description such as "element 7 of segment 'w' is nan".
TERSE_COLD std::string describe(const NonFiniteValue& found, const Layout& layout);

/// Throws non_finite_error for this rank's parameters.
[[noreturn]] TERSE_COLD void throw_parameters(const NonFiniteValue& found, const Layout& layout,
                                              const char* when, const char* advice, int rank,
                                              std::uint64_t step);

/// Throws the error of a step that rank `culprit` ends. `known`: the culprit has sent its result, if it found a value. `lost`: the
/// message of the peer_error that reported a lost peer, if there was one.
[[noreturn]] TERSE_COLD void throw_non_finite(const NonFiniteValue& found, const Layout& layout, int culprit,
                                              bool known, int rank, std::uint64_t step,
                                              const char* lost = nullptr);

/// A search for parameters that have become NaN or infinite. On the host, after each step it reads the next 1/16 of the parameters, at
/// least 4096 elements.
class FiniteWatch {
 public:
  /// Throws non_finite_error for a parameter in the next part. `step` is the last step.
  template <Number P>
  void look(const Layout& layout, view<const P> parameters, int rank, std::uint64_t step) {
    const auto& segments = layout.segments();
    index_t left = std::min(std::max(layout.size() / 16, index_t{4096}), layout.size());
    // Each iteration ends at the end of a segment or of the part.
    for (std::size_t turns = 0; left > 0 && turns <= segments.size(); ++turns) {
      const Segment& segment = segments[segment_];
      const index_t count = std::min(left, segment.count - element_);
      const index_t good = first_bad(parameters.data() + segment.offset + element_, count);
      if (good < count)
        fail(layout,
             {NonFiniteValue::Arena::parameters, widened(parameters[segment.offset + element_ + good]),
              static_cast<index_t>(segment_), element_ + good},
             rank, step);
      left -= count;
      element_ += count;
      if (element_ < segment.count) return;
      element_ = 0;
      segment_ = (segment_ + 1) % segments.size();
    }
  }

 private:
  [[noreturn]] TERSE_COLD static void fail(const Layout& layout, const NonFiniteValue& found, int rank,
                                           std::uint64_t step) {
    throw_parameters(found, layout, "after this step",
                     ". Load a checkpoint, and lower the learning rate if that has made them so", rank, step);
  }

  std::size_t segment_ = 0;
  index_t element_ = 0;  // next element of that segment to read
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/optimizer/non_finite_value.ipp"
#endif
