// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "terse/core/error.hpp"
#include "terse/graph/concept.hpp"

namespace terse::graph {

/// Checks whether value = base^k for some k >= 0; base >= 2. It uses integers, since a quotient of logarithms misses
/// exact powers such as 3^5.
constexpr bool is_power_of(int value, int base) {
  if (value < 1) return false;
  while (value % base == 0) value /= base;
  return value == 1;
}

/// Returns ceil(log2(value)), value >= 1.
constexpr int ceil_log2(int value) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(value) - 1));
}

/// Returns the rows of the squarest grid of `size` places, which is the largest divisor that does not exceed its
/// square root. O(sqrt).
constexpr int grid_rows(int size) {
  int rows = 1;
  for (int divisor = 2; divisor <= size / divisor; ++divisor)
    if (size % divisor == 0) rows = divisor;
  return rows;
}

/// Throws usage_error unless there are 2^k ranks.
inline void check_power_of_two(int size) {
  check_size(size);
  if (!is_power_of(size, 2))
    throw usage_error("a hypercube has 1, 2, 4, 8 ... ranks, not " + std::to_string(size));
}

/// Neighbour patterns without parameters, each an Adjacency. named.hpp has them with their usual weights.
namespace adjacency {

/// Returns the distance from `from` forward to `to` on a circle of `size`.
constexpr int hop(int from, int to, int size) { return (to - from + size) % size; }

/// Checks whether two different places of a circle are neighbours.
constexpr bool beside(int one, int other, int size) {
  const int distance = hop(one, other, size);
  return distance == 1 || distance == size - 1;
}

/// A ring: each rank with the one before and the one after it; a pair for two ranks.
struct Ring {
  static constexpr bool fixed = true, symmetric = true, regular = true;
  void check(int size) const { check_size(size); }
  bool sends(int from, int to, int size, std::uint64_t) const { return beside(from, to, size); }
};

/// A grid of rows x columns without wrap-around; rows and columns are the closest factors, rank = row *
/// columns + column. A line for primes.
struct Mesh {
  static constexpr bool fixed = true, symmetric = true, regular = false;
  void check(int size) const { check_size(size); }
  bool sends(int from, int to, int size, std::uint64_t) const {
    const int columns = size / grid_rows(size);
    const int down = to / columns - from / columns, right = to % columns - from % columns;
    return down * down + right * right == 1;
  }
};

/// A Mesh whose edges are joined. It is a ring for primes; in a dimension of two places both wraps are one edge.
struct Torus {
  static constexpr bool fixed = true, symmetric = true, regular = true;
  void check(int size) const { check_size(size); }
  bool sends(int from, int to, int size, std::uint64_t) const {
    const int rows = grid_rows(size), columns = size / rows;
    if (from / columns == to / columns) return beside(from % columns, to % columns, columns);
    return from % columns == to % columns && beside(from / columns, to / columns, rows);
  }
};

/// A star: rank 0 with every other rank.
struct Star {
  static constexpr bool fixed = true, symmetric = true, regular = false;
  void check(int size) const { check_size(size); }
  bool sends(int from, int to, int, std::uint64_t) const { return from == 0 || to == 0; }
};

/// The complete graph: every rank with every other rank.
struct Complete {
  static constexpr bool fixed = true, symmetric = true, regular = true;
  void check(int size) const { check_size(size); }
  bool sends(int, int, int, std::uint64_t) const { return true; }
};

/// A hypercube: ranks whose numbers differ in one bit. Sizes: powers of two.
struct Hypercube {
  static constexpr bool fixed = true, symmetric = true, regular = true;
  void check(int size) const { check_power_of_two(size); }
  bool sends(int from, int to, int, std::uint64_t) const { return is_power_of(from ^ to, 2); }
};

/// A directed graph: each rank sends to the ranks 1, Base, Base^2 ... after it, as long as that is less than the
/// size.
template <int Base>
struct DirectedExponential {
  static_assert(Base >= 2, "terse: hops are powers of a base of at least 2");
  static constexpr bool fixed = true, symmetric = false, regular = true;
  void check(int size) const { check_size(size); }
  bool sends(int from, int to, int size, std::uint64_t) const {
    return is_power_of(hop(from, to, size), Base);
  }
};

/// A symmetric graph: each rank with the ranks 1, Base, Base^2 ... after and before it, up to half the circle. With
/// base 2 and 8 ranks the hops are 1, 2, 4, 6, 7.
template <int Base>
struct SymmetricExponential {
  static_assert(Base >= 2, "terse: hops are powers of a base of at least 2");
  static constexpr bool fixed = true, symmetric = true, regular = true;
  void check(int size) const { check_size(size); }
  bool sends(int from, int to, int size, std::uint64_t) const {
    const int forth = hop(from, to, size), back = size - forth;
    return is_power_of(forth < back ? forth : back, Base);
  }
};

/// A directed, time-varying graph: in round k each rank sends to the rank 2^(k mod ceil(log2 size)) after it.
struct OnePeerExponential {
  static constexpr bool fixed = false, symmetric = false, regular = true;
  void check(int size) const { check_size(size); }
  bool sends(int from, int to, int size, std::uint64_t round) const {
    const auto period = static_cast<std::uint64_t>(ceil_log2(size));
    return period > 0 && hop(from, to, size) == 1 << (round % period);
  }
};

/// A symmetric, time-varying graph: in round k the ranks whose numbers differ only in bit k mod log2(size). Sizes:
/// powers of two.
struct OnePeerHypercube {
  static constexpr bool fixed = false, symmetric = true, regular = true;
  void check(int size) const { check_power_of_two(size); }
  bool sends(int from, int to, int size, std::uint64_t round) const {
    const auto period = static_cast<std::uint64_t>(ceil_log2(size));
    return period > 0 && (from ^ to) == 1 << (round % period);
  }
};

}  // namespace adjacency

}  // namespace terse::graph
