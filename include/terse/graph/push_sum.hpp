// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "terse/graph/adjacency.hpp"
#include "terse/graph/concept.hpp"

namespace terse::graph {

/// The mean over directed, irregular or changing graphs. Every rank splits its value evenly between itself and its
/// receivers, so that columns, not rows, sum to 1. A weight that is split in the same way tracks each rank's share:
///
///     A_ij = 1 / (out-degree of j + 1)     w(0) = 1, w(k + 1) = A w(k)     R_ij = A_ij w_j(k) / w_i(k + 1)
///
/// row() returns R, the matrix that acts on the de-biased values z = x / w. Its rows sum to 1 and it conserves the sum
/// of w_i z_i; the sum of w is the number of ranks. On a regular graph w stays 1. State: the object keeps w of the
/// last requested round. The next round costs one pass over all pairs of ranks, O(size^2 + sum over edges of sends()),
/// and allocates nothing after check(). An earlier round starts again from round 0. A later one passes through all
/// rounds in between, unless w has converged. Const members change that state, so each thread must use a separate
/// copy. Source: Kempe, Dobra, Gehrke, "Gossip-based computation of aggregate information", FOCS 2003; Assran, Loizou,
/// Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019, section 2.
template <Adjacency A>
class PushSum : public A {
 public:
  static constexpr bool fixed = false, symmetric = false, doubly_stochastic = false, push_sum = true;
  // If A is a graph, its flags hold for its own weights only.
  static constexpr bool spectrum_above_minus_third = false, lazy = false, known_at_construction = false;

  PushSum() = default;
  explicit PushSum(A adjacency) : A(std::move(adjacency)) {}

  void check(int size) const {
    A::check(size);
    start(size);
  }

  /// Returns w_i(round), this rank's share of the whole, relative to an even share.
  double weight(int rank, int size, std::uint64_t round) const {
    if (size == size_ && round == round_ + 1) return next_[static_cast<std::size_t>(rank)];
    seek(size, round);
    return weights_[static_cast<std::size_t>(rank)];
  }

  void row(int rank, int size, std::uint64_t round, std::vector<Edge>& edges) const {
    seek(size, round);
    edges.clear();
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank && A::sends(peer, rank, size, round))
        edges.push_back(
            {peer, shares_[static_cast<std::size_t>(peer)] / next_[static_cast<std::size_t>(rank)]});
  }
  void receivers(int rank, int size, std::uint64_t round, std::vector<int>& peers) const {
    out_neighbors<A>(*this, rank, size, round, peers);
  }

 private:
  void start(int size) const {
    size_ = size;
    round_ = 0;
    weights_.assign(static_cast<std::size_t>(size), 1);
    split();
  }

  void seek(int size, std::uint64_t round) const {
    if (size != size_ || round < round_) start(size);
    while (round_ < round) {
      // With a fixed A, a converged w stays valid forever.
      round_ = A::fixed && weights_ == next_ ? round : round_ + 1;
      weights_.swap(next_);
      split();
    }
  }

  /// Computes, from w(round), each rank's share for each of its receivers, and w(round + 1).
  void split() const {
    shares_.resize(weights_.size());
    for (int rank = 0; rank < size_; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      shares_[i] = weights_[i] / (out_degree<A>(*this, rank, size_, round_) + 1);
    }
    next_ = shares_;
    for (int from = 0; from < size_; ++from)
      for (int to = 0; to < size_; ++to)
        if (to != from && A::sends(from, to, size_, round_))
          next_[static_cast<std::size_t>(to)] += shares_[static_cast<std::size_t>(from)];
  }

  mutable int size_ = 0;
  mutable std::uint64_t round_ = 0;
  mutable std::vector<double> weights_;  // w(round_)
  mutable std::vector<double> shares_;   // A_ji w_i(round_), equal for all j
  mutable std::vector<double> next_;     // w(round_ + 1)
};

}  // namespace terse::graph
