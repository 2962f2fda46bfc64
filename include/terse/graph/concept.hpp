// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "terse/core/error.hpp"

/// Mixing graphs: the ranks that average, and their weights, as pure functions of (rank, size, round). One round of
/// mixing is x_i <- sum over j of W_ij x_j. Nothing here communicates.
namespace terse::graph {

/// The contribution of a peer in a round: weight * the peer's value.
struct Edge {
  int peer;       ///< a neighbour's rank
  double weight;  ///< weight of the neighbour's value, W_ij
};

/// A mixing graph: the matrix W of each round, row by row. Rounds count from 0.
///
///     check(size)                            throws usage_error if it can't have `size` ranks or its
///                                            parameters are bad; other members rely on it
///     row(rank, size, round, edges)          replaces `edges` by W's row without its diagonal: ascending
///                                            peers, weights > 0. The rank's own weight is 1 - their sum
///     receivers(rank, size, round, peers)    replaces `peers` by the ranks whose row holds `rank`, ascending
///
/// Neither allocates once its vector has room for `size` entries. The flags are promises for every size that check()
/// accepts; verify() compares them with the matrices:
///
///     fixed               the same matrix in every round
///     symmetric           W = W^T in every round
///     doubly_stochastic   columns also sum to 1, in every round: mixing conserves the mean
///     regular             all ranks have equally many in-neighbours, and as many out-neighbours
///
/// Optional: `most_neighbors(size)`, the most edges of a row, size - 1 by default, for graphs that are not fixed.
/// `settings(visit)` with visit(name, double) for each parameter, so that ranks with different graphs are detected.
/// The members of Traits.
template <class G>
concept Graph = std::copyable<G> &&
    requires(const G& graph, int n, std::uint64_t round, std::vector<Edge>& edges, std::vector<int>& peers) {
  { G::fixed } -> std::convertible_to<bool>;
  { G::symmetric } -> std::convertible_to<bool>;
  { G::doubly_stochastic } -> std::convertible_to<bool>;
  { G::regular } -> std::convertible_to<bool>;
  graph.check(n);
  graph.row(n, n, round, edges);
  graph.receivers(n, n, round, peers);
};

namespace detail {

template <class G>
constexpr bool is_above_minus_third() {
  if constexpr (requires { G::spectrum_above_minus_third; }) return G::spectrum_above_minus_third;
  return false;
}
template <class G>
constexpr bool is_lazy() {
  if constexpr (requires { G::lazy; }) return G::lazy;
  return false;
}
template <class G>
constexpr bool is_known_at_construction() {
  if constexpr (requires { G::known_at_construction; }) return G::known_at_construction;
  return false;
}
template <class G>
constexpr bool is_push_sum() {
  if constexpr (requires { G::push_sum; }) return G::push_sum;
  return false;
}
template <class G>
constexpr bool is_unchecked() {
  if constexpr (requires { G::unchecked; }) return G::unchecked;
  return false;
}

}  // namespace detail

/// The further properties of a graph that theory requires. Each may be stated as a `static constexpr bool` member of G,
/// and is false otherwise.
template <class G>
struct Traits {
  /// True if W is symmetric with eigenvalues above -1/3, in every round and for every size. Exact diffusion (D2)
  /// requires this of a fixed graph.
  static constexpr bool spectrum_above_minus_third = detail::is_above_minus_third<G>();
  /// The form (I + W) / 2 of some W, see Lazy.
  static constexpr bool lazy = detail::is_lazy<G>();
  /// A custom graph that is fixed and symmetric; its spectrum is checked at construction.
  static constexpr bool known_at_construction = detail::is_known_at_construction<G>();
  /// Rows that belong to push-sum weights, `double weight(rank, size, round)`. See PushSum.
  static constexpr bool push_sum = detail::is_push_sum<G>();
  /// Checks of method against graph that are switched off, see Unchecked.
  static constexpr bool unchecked = detail::is_unchecked<G>();
};

/// Visits a graph's or an adjacency's parameters, if it states any.
template <class G, class Visit>
void visit_settings(const G& graph, Visit&& visit) {
  if constexpr (requires { graph.settings(visit); }) graph.settings(visit);
}

/// A graph without the compile-time checks, for experiments such as DecentLaM on a directed graph, which diverges for
/// large beta.
template <class G>
struct Unchecked : G {
  static constexpr bool unchecked = true;
};

/// Throws usage_error unless there is at least one rank.
inline void check_size(int size) {
  if (size < 1) throw usage_error("a graph has at least one rank, not " + std::to_string(size));
}

/// Reports a missing member of a graph with a readable static_assert.
template <class G>
constexpr bool check_graph() {
  static_assert(std::copyable<G>, "terse: a graph is a value: it must be copyable");
  static_assert(
      requires {
        { G::fixed } -> std::convertible_to<bool>;
        { G::symmetric } -> std::convertible_to<bool>;
        { G::doubly_stochastic } -> std::convertible_to<bool>;
        { G::regular } -> std::convertible_to<bool>;
      },
      "terse: a graph states `static constexpr bool` fixed, symmetric, doubly_stochastic and regular, so "
      "that "
      "it is never paired with a method that diverges on it");
  static_assert(
      requires(const G& graph) { graph.check(int{}); },
      "terse: a graph needs `void check(int size) const`, which throws terse::usage_error where it can't "
      "have "
      "that many ranks");
  static_assert(
      requires(const G& graph, std::vector<Edge>& edges) { graph.row(int{}, int{}, std::uint64_t{}, edges); },
      "terse: a graph needs `void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) "
      "const`; an adjacency gets it from Uniform<Adjacency> or MetropolisHastings<Adjacency>");
  static_assert(
      requires(const G& graph, std::vector<int>& peers) {
        graph.receivers(int{}, int{}, std::uint64_t{}, peers);
      },
      "terse: a graph needs `void receivers(int rank, int size, std::uint64_t round, std::vector<int>& "
      "peers) "
      "const`: the ranks whose row holds `rank`");
  if constexpr (Graph<G>) {
    static_assert(!G::symmetric || G::doubly_stochastic,
                  "terse: rows sum to 1, so a symmetric graph is doubly stochastic");
    static_assert(
        !Traits<G>::spectrum_above_minus_third || G::symmetric,
        "terse: spectrum_above_minus_third is a property of real eigenvalues: the graph must be symmetric");
    static_assert(
        !Traits<G>::push_sum || requires(const G& graph) { graph.weight(int{}, int{}, std::uint64_t{}); },
        "terse: a push-sum graph needs `double weight(int rank, int size, std::uint64_t round) const`");
  }
  return Graph<G>;
}

}  // namespace terse::graph
