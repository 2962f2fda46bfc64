// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "terse/core/layout.hpp"

namespace terse::laws {

/// Elements of a message or a state, in fp32.
using Values = std::vector<float>;

/// Converts an index to the standard library's type.
constexpr std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
/// Returns a container's size in terse's index type.
constexpr index_t count_of(const auto& container) { return static_cast<index_t>(container.size()); }

/// Formats as printf into a string.
[[gnu::format(printf, 1, 2)]] inline std::string say(const char* format, ...) {
  char line[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(line, sizeof line, format, list);
  va_end(list);
  return line;
}
/// Formats a float both readably and exactly.
inline std::string say(float x) { return say("%g (%a)", static_cast<double>(x), static_cast<double>(x)); }

/// Returns true if two floats have the same bits.
inline bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }
/// Returns true if two vectors have the same length and bits.
inline bool same(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// An example for a law: segments, and one or more messages over their elements, counted without padding.
struct Example {
  std::vector<index_t> counts;           ///< elements of the segments
  std::vector<std::uint8_t> excluded{};  ///< 1 for segments that are sent dense; empty if there are none
  std::vector<std::uint8_t> masked{};    ///< 1 for elements that are masked; empty if there are none
  int parts = 1;                         ///< number of packets of a message
  std::vector<Values> messages{};        ///< messages, in order of steps
  std::uint64_t seed = 1;                ///< seed of random draws
  std::uint64_t step = 1;                ///< step of the first message

  index_t elements() const {
    index_t sum = 0;
    for (const index_t count : counts) sum += count;
    return sum;
  }
  bool keeps(index_t e) const { return masked.empty() || masked[at(e)] == 0; }
  bool excludes(std::size_t segment) const { return !excluded.empty() && excluded[segment] != 0; }

  std::string text() const {
    std::string text = say("n = %lld", static_cast<long long>(elements()));
    if (counts.size() > 1 || !excluded.empty()) {
      text += ", segments";
      for (std::size_t s = 0; s < counts.size(); ++s)
        text += say(" %lld%s", static_cast<long long>(counts[s]), excludes(s) ? " (excluded)" : "");
    }
    if (parts > 1) text += say(", cut into %d packets", parts);
    text += say(", seed %llu, step %llu", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(step));
    for (std::size_t m = 0; m < messages.size(); ++m)
      text += list("\nmessage " + std::to_string(m), messages[m]);
    if (!masked.empty()) {
      text += "\nmasked";
      for (std::size_t e = 0, shown = 0; e < masked.size(); ++e)
        if (masked[e] != 0 && ++shown <= 20) text += " " + std::to_string(e);
    }
    return text;
  }

 private:
  static std::string list(const std::string& name, const Values& values) {
    constexpr std::size_t most = 20;
    std::string text = name;
    for (std::size_t e = 0; e < values.size() && e < most; ++e) {
      std::size_t run = e + 1;
      while (run < values.size() && same(values[run], values[e])) ++run;
      text += (e == 0 ? ": " : ", ") + say(values[e]);
      if (run > e + 2) {
        text += say(" x %zu", run - e);
        e = run - 1;
      }
    }
    return values.size() > most ? text + " ..." : text;
  }
};

/// The places of an example's elements in an arena.
struct Arena {
  Layout layout;
  std::vector<index_t> place;             ///< arena index of each element
  std::vector<std::uint8_t> compressed;   ///< 1 for elements in segments that are not excluded
  std::vector<std::uint64_t> mask_words;  ///< empty: no mask
  int parts = 1;                          ///< number of packets of a message

  explicit Arena(const Example& example) : parts(example.parts) {
    for (std::size_t s = 0; s < example.counts.size(); ++s) {
      Segment segment;
      segment.name = std::to_string(s);
      // Some segments are matrices, for compressors that depend on the shape.
      const index_t count = example.counts[s];
      segment.shape = count % 3 == 0 ? std::vector<index_t>{3, count / 3} : std::vector<index_t>{count};
      segment.compress = !example.excludes(s);
      layout.add(segment);
      const Segment& added = layout.segments().back();
      for (index_t i = 0; i < added.count; ++i) {
        place.push_back(added.offset + i);
        compressed.push_back(added.compress);
      }
    }
    if (example.masked.empty()) return;
    mask_words.assign(at(layout.size() / alignment), ~std::uint64_t{0});
    for (std::size_t e = 0; e < place.size(); ++e)
      if (example.masked[e] != 0) mask_words[at(place[e] / 64)] &= ~(std::uint64_t{1} << place[e] % 64);
  }
  /// Returns an arena with the elements at their places.
  Values spread(const Values& elements, float padding = 0) const {
    Values arena(at(layout.size()), padding);
    for (std::size_t e = 0; e < place.size(); ++e) arena[at(place[e])] = elements[e];
    return arena;
  }
  Values gather(const Values& arena) const {
    Values elements;
    for (const index_t i : place) elements.push_back(arena[at(i)]);
    return elements;
  }
};

/// Returns a uniform number in (-1, 1), a function of its arguments.
inline float uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
  // SplitMix64's finalizer: examples need many numbers, but no better ones.
  std::uint64_t word =
      (seed * 0x9E3779B97F4A7C15U + stream) * 0xD1342543DE82EF95U + (i + 1) * 0x9E3779B97F4A7C15U;
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9U;
  word = (word ^ word >> 27) * 0x94D049BB133111EBU;
  word ^= word >> 31;
  return (static_cast<float>(word >> 40) + 0.5F) * 0x1p-23F - 1.0F;
}

/// Kinds of messages; see `ordinary` and `extreme`.
enum class Pattern {
  uniform,
  heavy,      // 1 to e^-20, of both signs
  offset,     // one sign, far from zero
  constant,   // the same value
  flipping,   // one magnitude, alternating signs
  one_hot,    // zeros except one value
  one_large,  // one large value, the others small and equal
  geometric,  // each a fixed ratio of the previous one
  two_sizes,  // one in seven a hundred times larger
  sparse,     // one in ten is not zero
  denormal,
  zeros,  // both signs
  huge,   // 2^63, the largest number that counts as finite
};
/// Patterns of normal numbers, whose errors can be compared.
inline constexpr Pattern ordinary[] = {
    Pattern::uniform, Pattern::heavy,     Pattern::offset,    Pattern::constant,  Pattern::flipping,
    Pattern::one_hot, Pattern::one_large, Pattern::geometric, Pattern::two_sizes, Pattern::sparse};
/// Patterns at the ends of fp32's range.
inline constexpr Pattern extreme[] = {Pattern::denormal, Pattern::zeros, Pattern::huge};

/// Returns n numbers of a pattern, of magnitude `size`, determined by the seed.
inline Values values(Pattern pattern, index_t n, float size, std::uint64_t seed) {
  Values x(at(n));
  for (index_t i = 0; i < n; ++i) {
    const float u = uniform(seed, 1, static_cast<std::uint64_t>(i));
    const float v = uniform(seed, 2, static_cast<std::uint64_t>(i)), sign = u < 0 ? -1.0F : 1.0F;
    switch (pattern) {
      case Pattern::uniform:
        x[at(i)] = size * u;
        break;
      case Pattern::heavy:
        x[at(i)] = size * sign * std::exp(-10 - 10 * v);
        break;
      case Pattern::offset:
        x[at(i)] = size * (3 + u / 8);
        break;
      case Pattern::constant:
        x[at(i)] = size * -0.3F;
        break;
      case Pattern::flipping:
        x[at(i)] = size * (i % 2 == 0 ? 0.75F : -0.75F);
        break;
      case Pattern::one_hot:
        x[at(i)] = i == static_cast<index_t>(seed % static_cast<std::uint64_t>(n)) ? size * -3 : 0.0F;
        break;
      case Pattern::one_large:
        x[at(i)] = i == 0 ? size : size * std::exp2(-1 - static_cast<float>(seed % 7));
        break;
      case Pattern::geometric:
        x[at(i)] = size * sign * std::exp2(static_cast<float>(-(i % 100)) / 4);
        break;
      case Pattern::two_sizes:
        x[at(i)] = size * u * (i % 7 == 3 ? 100.0F : 1.0F);
        break;
      case Pattern::sparse:
        x[at(i)] = v > 0.8F ? size * u : 0.0F;
        break;
      case Pattern::denormal:
        x[at(i)] = sign * std::numeric_limits<float>::denorm_min() * std::exp2(10 + 10 * v);
        break;
      case Pattern::zeros:
        x[at(i)] = i % 3 == 1 ? -0.0F : 0.0F;
        break;
      case Pattern::huge:
        x[at(i)] = sign * 0x1p63F;
        break;
    }
  }
  return x;
}

/// Sizes at word, block and reduction edges.
inline constexpr index_t edges[] = {0, 1, 7, 63, 64, 65, 1000, 4095, 4097};

/// Returns examples of `messages` messages: every size with every pattern, and several segments with masks, exclusions
/// and several packets. They are in ascending size, so that the first failure is a small example.
inline std::vector<Example> examples(std::uint64_t seed, float size, std::size_t messages) {
  std::vector<Example> all;
  std::vector<Pattern> patterns(std::begin(ordinary), std::end(ordinary));
  patterns.insert(patterns.end(), std::begin(extreme), std::end(extreme));
  const auto fill = [&](Example example, std::size_t first) {
    example.seed = seed;
    for (std::size_t m = 0; m < messages; ++m)
      example.messages.push_back(values(patterns[(first + m * 5) % patterns.size()], example.elements(), size,
                                        seed + first + 100 * m));
    all.push_back(std::move(example));
  };
  for (const index_t n : edges)
    for (std::size_t p = 0; p < (n == 0 ? 1 : patterns.size()); ++p) fill({.counts = {n}}, p);
  const std::vector<std::vector<index_t>> shapes = {
      {1, 1}, {0, 7, 64}, {65, 1, 200, 0, 63}, {4097, 130, 1000}};
  for (std::size_t shape = 0; shape < shapes.size(); ++shape)
    for (int variant = 0; variant < 6; ++variant) {
      Example example{.counts = shapes[shape]};
      if (variant % 2 == 1) {
        example.excluded.assign(example.counts.size(), 0);
        example.excluded[example.counts.size() / 2] = 1;
      }
      if (variant >= 2)
        for (index_t e = 0; e < example.elements(); ++e)
          example.masked.push_back(uniform(seed, 3, static_cast<std::uint64_t>(e)) <
                                   (variant < 4 ? -0.4F : 0.9F));
      example.parts = variant % 3 == 2 ? 3 : 1;
      fill(std::move(example), static_cast<std::size_t>(variant) + shape);
    }
  return all;
}

}  // namespace terse::laws
