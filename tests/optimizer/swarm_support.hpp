// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optimizer/local_support.hpp"
#include "terse/compressor/lattice.hpp"
#include "terse/graph/random_edge.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"

// What the tests of SwarmSGD share.

namespace terse::test {

using Blocking = SwarmSgd<MomentumSgd<>>;
using NonBlocking = NonBlockingSwarmSgd<MomentumSgd<>>;
using OnEdges = SwarmSgd<MomentumSgd<>, Dense, graph::RandomEdge>;
using OnLattice = SwarmSgd<MomentumSgd<>, Lattice<8>>;
using LateOnLattice = NonBlockingSwarmSgd<MomentumSgd<>, Lattice<8>>;

/// Everybody's partner in a step, -1: none.
template <class R>
std::vector<int> partners_of(const R& recipe, int ranks, std::uint64_t step) {
  std::vector<int> partners;
  for (int rank = 0; rank < ranks; ++rank) partners.push_back(recipe.schedule.partner(rank, ranks, step - 1));
  return partners;
}

/// A start of each rank's own, at most `apart` from a common one.
inline Floats own_start(const Layout& layout, int rank, float apart) {
  Floats x = start(layout);
  for (const Segment& segment : layout.segments())
    for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
      x[at(i)] += 0.5F * apart * noise(21, rank, 0, i);
  return x;
}

}  // namespace terse::test
