// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/graph/patterns.hpp"
#include "terse/graph/weights.hpp"

// Graphs of the literature by their names, with their usual weights. Each is also an Adjacency, so that it can have
// other weights: PushSum<OnePeerExponential>.

namespace terse::graph {

/// A ring: weights 1/3 for both neighbours and the rank itself; 1/2 for two ranks. rho(W) = 1 - O(1/n^2).
struct Ring : Uniform<adjacency::Ring> {};

/// A two-dimensional grid of the closest factors, with Metropolis-Hastings weights. rho(W) = 1 - O(1 / (n log n)).
/// lambda_min falls below -1/3: exact diffusion needs Lazy<Mesh>.
struct Mesh : MetropolisHastings<adjacency::Mesh> {};

/// A Mesh with joined edges; weights are 1/5 if both dimensions are at least 3. rho(W) = 1 - O(1/n).
struct Torus : Uniform<adjacency::Torus> {};

/// A star: rank 0 exchanges with all others, all weights 1/n. The eigenvalues are 1, 1 - 1/n (n - 2 times) and 0.
struct Star : MetropolisHastings<adjacency::Star> {
  static constexpr bool spectrum_above_minus_third = true;
};

/// The complete graph: all ranks average with each other in one round, W = 11^T / n.
struct Complete : Uniform<adjacency::Complete> {
  static constexpr bool spectrum_above_minus_third = true;
};

/// A hypercube: log2(n) neighbours with weights 1 / (log2(n) + 1), n a power of two.
/// lambda_min = (1 - log2 n) / (1 + log2 n).
struct Hypercube : Uniform<adjacency::Hypercube> {};

/// A directed graph: a rank receives from the ranks 1, 2, 4 ... before it, in total ceil(log2 n). Heavy-ball methods,
/// such as DecentLaM, diverge on it for large beta, see heavy_ball_consensus_radius. Source: Ying, Yuan, Chen, Hu,
/// Pan, Yin, "Exponential graph is provably efficient for decentralized deep training", NeurIPS 2021, section 3.
struct DirectedExponential : Uniform<adjacency::DirectedExponential<2>> {};

/// A symmetric graph: a rank exchanges with the ranks 1, 2, 4 ... before and after it, up to half the circle; weights
/// 1/6 for n = 8.
struct SymmetricExponential : Uniform<adjacency::SymmetricExponential<2>> {};

/// A directed, time-varying graph with one message per rank and round: a rank receives from the rank 2^(round mod
/// ceil(log2 n)) before it, weight 1/2. For n = 2^k any k consecutive rounds give the exact mean.
/// Source: Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019, section
/// 3; Ying et al. as for DirectedExponential, section 4.
struct OnePeerExponential : Uniform<adjacency::OnePeerExponential> {
  static constexpr int most_neighbors(int) { return 1; }
};

/// A symmetric, time-varying graph with one exchange per rank and round, with weight 1/2. A rank's partner is the
/// rank whose number differs in bit (round mod log2 n). n = 2^k; any k consecutive rounds give the exact mean.
struct OnePeerHypercube : Uniform<adjacency::OnePeerHypercube> {
  static constexpr int most_neighbors(int) { return 1; }
};

}  // namespace terse::graph
