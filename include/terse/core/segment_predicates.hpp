// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <string_view>

#include "terse/core/layout.hpp"

// Predicates that select segments of a layout, for policies that differ between layers.

namespace terse {

/// A condition on a segment: a copyable functor. All ranks must get the same result, so it may depend only on the
/// segment and on parameters that `settings(visit)` shows.
template <class P>
concept SegmentPredicate = std::copyable<P> && requires(const P& predicate, const Segment& segment) {
  { predicate(segment) } -> std::same_as<bool>;
};

/// A predicate that holds for every segment.
struct AnySegment {
  bool operator()(const Segment&) const { return true; }
};

namespace detail {

/// A predicate that holds for no segment.
struct NoSegment {
  bool operator()(const Segment&) const { return false; }
};

}  // namespace detail

/// A predicate for segments with at least two dimensions of at least 2: weights, not biases or gains.
struct IsMatrix {
  bool operator()(const Segment& segment) const {
    int long_sides = 0;
    for (const index_t extent : segment.shape) long_sides += extent > 1 ? 1 : 0;
    return long_sides >= 2;
  }
};

/// A predicate for segments of less than N elements.
template <index_t N>
struct IsSmallerThan {
  static_assert(N > 0, "terse: no segment has less than 0 elements");
  bool operator()(const Segment& segment) const { return segment.count < N; }
};
#ifndef Below  // a macro of X11
/// The old name of IsSmallerThan, which version 0.2 removes.
template <index_t N>
using Below [[deprecated("its name is IsSmallerThan")]] = IsSmallerThan<N>;
#endif

/// A text as a template argument.
template <std::size_t Size>
struct Text {
  char characters[Size]{};  ///< with the 0 at its end
  constexpr Text(const char (&text)[Size]) {
    for (std::size_t k = 0; k < Size; ++k) characters[k] = text[k];
  }
  constexpr std::string_view view() const { return {characters, Size - 1}; }
};

/// Checks whether `name` matches `pattern`. `*` stands for any characters, including none, and `?` for one; all others
/// stand for themselves.
constexpr bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, after = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      // A star first stands for no character, then for one more each time the rest doesn't match.
      star = p++;
      after = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++after;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// A predicate for segments whose name matches: Named<"embedding*">, Named<"*.bias">.
template <Text Pattern>
struct Named {
  bool operator()(const Segment& segment) const { return matches(Pattern.view(), segment.name); }
};

}  // namespace terse
