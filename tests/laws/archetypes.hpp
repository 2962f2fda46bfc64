// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "archetype_packets.hpp"
#include "archetype_rules.hpp"
#include "archetype_topology.hpp"
#include "archetype_transport.hpp"
#include "terse/graph/concept.hpp"
#include "terse/optimizer/recipe.hpp"
#include "terse/topology/scatter_gather.hpp"

// A type for each concept with nothing but what its contract promises: see archetype_rules.hpp.

namespace archetype {

/// graph::Ring.
struct Graph {
#if !defined(OMIT_GRAPH_FIXED)
  static constexpr bool fixed = true;
#endif
  static constexpr bool symmetric = true, doubly_stochastic = true, regular = true;

#if !defined(OMIT_GRAPH_CHECK)
  void check(int size) const {
    if (size < 1) throw terse::usage_error("a ring has at least one rank");
  }
#endif
#if !defined(OMIT_GRAPH_ROW)
  void row(int rank, int size, std::uint64_t, std::vector<terse::graph::Edge>& edges) const {
    edges.clear();
    const int before = (rank + size - 1) % size, behind = (rank + 1) % size;
    if (size == 2) edges.push_back({behind, 0.5});
    if (size < 3) return;
    edges.push_back({std::min(before, behind), 1.0 / 3});
    edges.push_back({std::max(before, behind), 1.0 / 3});
  }
#endif
#if !defined(OMIT_GRAPH_RECEIVERS)
  void receivers(int rank, int size, std::uint64_t, std::vector<int>& peers) const {
    peers.clear();
    const int before = (rank + size - 1) % size, behind = (rank + 1) % size;
    if (size == 2) peers.push_back(behind);
    if (size < 3) return;
    peers.push_back(std::min(before, behind));
    peers.push_back(std::max(before, behind));
  }
#endif
};

TERSE_NUMERICS_BEGIN

/// Gradient descent by the exact mean: Averaging<>.
struct Recipe {
  float learning_rate = 0.1F;

#if !defined(OMIT_RECIPE_CHECK)
  void check() const {}
#endif
#if !defined(OMIT_RECIPE_SETTINGS)
  template <class Visit>
  void settings(Visit&& visit) const {
    visit("learning_rate", static_cast<double>(learning_rate));
  }
#endif
#if !defined(OMIT_RECIPE_STATE)
  template <terse::Executor E>
  struct State {
    terse::DenseExchange<terse::ScatterGather, E> exchange;

    State(const Recipe&, E executor, terse::Channel& channel, const terse::Layout& layout,
          const terse::Options& options)
        : exchange(executor, channel, layout, layout.range(), {}, {}, options.clips()) {}
#if !defined(OMIT_RECIPE_FULL_PRECISION)
    bool full_precision() const { return true; }
#endif
#if !defined(OMIT_RECIPE_WALK)
    template <class Visit>
    void walk(Visit&&) {}
#endif
  };
#endif

  /// x = x - learning_rate mean.
  template <class N>
  struct Descend {
    terse::ParameterRef<typename N::parameter> parameters;
    float learning_rate;
    float gradient_factor = 1;
    void operator()(const terse::Piece&, terse::index_t i, float mean) const {
      parameters.set(i, parameters[i] - learning_rate * (mean * gradient_factor));
    }
  };

#if !defined(OMIT_RECIPE_PREPARE)
  template <class Input, class State>
  void prepare(const Input&, State&, terse::StepScalars&) const {}
#endif
#if !defined(OMIT_RECIPE_ENQUEUE)
  template <terse::Executor E, class N, class State>
  void enqueue(const terse::StepInput<E, N>& input, State& state) const {
    terse::average_gradients(state.exchange, input, Descend<N>{input.parameters, learning_rate});
  }
#endif
#if !defined(OMIT_RECIPE_COMPLETE)
  template <class Input, class State>
  void complete(const Input& input, State& state) const {
    state.exchange.settle(input.context);
  }
#endif
};

TERSE_NUMERICS_END

}  // namespace archetype
