// SPDX-License-Identifier: Apache-2.0
#pragma once

// Topologies: they determine which rank sends which packet to which rank. Bytes, phases and errors of each:
// docs/topologies.md.
//
//     ScatterGather                             each rank owns a chunk: two phases
//     Ring                                      2 (W - 1) messages to the next rank
//     BySize<Small, Large>                      one of two, by the size of a slice
//     AllGather                                 whole packets to all: compressed only once
//     Star                                      by way of one rank
//     Gathered<Merge>                           another merge than the mean: Radial, MedianClip
//     Native                                    the transport's own collectives, in full precision
//     Alone                                     no messages
//     Hierarchical<Inner, Outer>, Within<C>     two levels: within nodes and between them
//     Mixing<G>, MachineMixing<G>, Pairing<G>   neighbors in a graph: decentralized methods
//
// laws/topology.hpp checks their promises. terse/topology/concept.hpp has the contract, and
// examples/custom_topology.cpp a complete custom one.

#include "terse/exchange/hierarchical.hpp"    // IWYU pragma: export
#include "terse/topology/all_gather.hpp"      // IWYU pragma: export
#include "terse/topology/alone.hpp"           // IWYU pragma: export
#include "terse/topology/by_size.hpp"         // IWYU pragma: export
#include "terse/topology/concept.hpp"         // IWYU pragma: export
#include "terse/topology/gathered.hpp"        // IWYU pragma: export
#include "terse/topology/machine_mixing.hpp"  // IWYU pragma: export
#include "terse/topology/median_clip.hpp"     // IWYU pragma: export
#include "terse/topology/mixing.hpp"          // IWYU pragma: export
#include "terse/topology/native.hpp"          // IWYU pragma: export
#include "terse/topology/pairing.hpp"         // IWYU pragma: export
#include "terse/topology/radial.hpp"          // IWYU pragma: export
#include "terse/topology/ring.hpp"            // IWYU pragma: export
#include "terse/topology/scatter_gather.hpp"  // IWYU pragma: export
#include "terse/topology/star.hpp"            // IWYU pragma: export
#include "terse/topology/within.hpp"          // IWYU pragma: export
