// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "optimizer/support.hpp"
#include "terse/graph/directed_list.hpp"
#include "terse/graph/matrix.hpp"
#include "terse/graph/random_matching.hpp"
#include "terse/optimizer/d2.hpp"
#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/decentlam.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/gradient_tracking.hpp"
#include "terse/optimizer/momentum_consensus.hpp"
#include "terse/optimizer/qg_dm_sgd.hpp"
#include "terse/optimizer/stochastic_gradient_push.hpp"

// What the tests of decentralized SGD share: a problem, runs that train on it, and the recipes.

namespace terse::test {

/// One type for all fixed graphs that are symmetric: fewer recipes to compile.
using Given = Mixing<graph::SymmetricMatrix>;
using OnePeer = DmSgd<Mixing<graph::OnePeerExponential>>;
using Matched = QgDmSgd<Mixing<graph::RandomMatching>>;

inline bool any_one(const Segment&) { return true; }

/// Sizes at the edges of words, own rates and decays, and a segment that stays as it is.
inline Layout odd_sizes() {
  Layout layout;
  layout.add({"one", {1}})
      .add({"seven", {7}, 0.5F})
      .add({"none", {0}})
      .add({"v64", {64}, 1, 0})
      .add({"v65", {65}, 2, 0.5F})
      .add({"frozen", {3}, 0})
      .add({"w", {1000}, 1, 2});
  return layout;
}

/// Quadratics for eight ranks on odd_sizes(), each rank's and each element's with a centre and a curvature in [0.5, 1.5)
/// of its own, so that the minimum of their mean is nobody's own.
struct Quadratics {
  std::vector<Floats> centre, curvature;  // [rank]

  Quadratics() {
    const index_t size = odd_sizes().size();
    for (int rank = 0; rank < 8; ++rank) {
      centre.emplace_back(at(size));
      curvature.emplace_back(at(size));
      for (index_t i = 0; i < size; ++i) {
        centre.back()[at(i)] = 2 * noise(11, rank, 0, i);
        curvature.back()[at(i)] = 1 + 0.5F * noise(12, rank, 0, i);
      }
    }
  }
  static const Quadratics& all() {
    static const Quadratics one;
    return one;
  }
  /// In float for what is tested, in double for oracles.
  template <class Real>
  static std::vector<Real> gradient(std::size_t rank, const std::vector<Real>& x) {
    const Floats& a = all().curvature[rank];
    const Floats& c = all().centre[rank];
    std::vector<Real> g(x.size());
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = static_cast<Real>(a[i]) * (x[i] - static_cast<Real>(c[i]));
    return g;
  }
};

/// Warms up from 0, goes up and down, rests for a step, and ends at 0.
inline float warm_and_cool(std::uint64_t step) {
  if (step <= 5) return 0.02F * static_cast<float>(step - 1);
  if (step == 20 || step >= 38) return 0;
  return 0.05F * (1 + 0.5F * std::sin(static_cast<float>(step)));
}

/// Everybody to the next, rank 0 to every second rank, too: directed and irregular.
inline std::vector<std::vector<int>> one_way(int ranks) {
  std::vector<std::vector<int>> lists(at(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    if (ranks > 1) lists[at(rank)].push_back((rank + 1) % ranks);
  for (int rank = 2; rank < ranks; rank += 2) lists[0].push_back(rank);
  return lists;
}

/// A step of rank `rank` on its quadratics; with `begins` messages leave before the gradient, if they can.
template <class O>
Floats take_step(O& optimizer, int rank, Floats& x, bool begins) {
  if constexpr (requires { optimizer.begin(x); })
    if (begins) optimizer.begin(x);
  Floats g = Quadratics::gradient<float>(at(rank), x);
  optimizer.step(x, g);
  return g;
}

/// Runs `program` as every rank. Not a template, for the sake of compile time.
inline void on_ranks(int ranks, const std::function<void(Threads&)>& program) {
  ThreadGroup(ranks, std::chrono::seconds(20)).run(program);
}

/// Runs `steps` steps at rate(step), with what was sent and with the gradients, as "gradient", in the state.
template <class R>
History train(const R& recipe, const Layout& layout, int ranks, std::uint64_t steps,
              float (*rate)(std::uint64_t), bool begins) {
  History history(steps, std::vector<Snapshot>(at(ranks)));
  on_ranks(ranks, [&](Threads& raw) {
    Metered<Threads> transport(raw.split(0, raw.rank()));
    Optimizer optimizer{recipe, transport, layout};
    Floats x = start(layout);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      optimizer.recipe.learning_rate = rate(step);
      const std::uint64_t reduced = transport.traffic()[Phase::reduce].bytes_sent;
      const std::uint64_t spread = transport.traffic()[Phase::spread].bytes_sent;
      const Floats g = take_step(optimizer, transport.rank(), x, begins);
      Snapshot& snapshot = history[step - 1][at(transport.rank())];
      optimizer.walk(snapshot.state);
      snapshot.state.parts["gradient"].assign(g.begin(), g.end());
      snapshot.parameters = x;
      snapshot.reduced = transport.traffic()[Phase::reduce].bytes_sent - reduced;
      snapshot.spread = transport.traffic()[Phase::spread].bytes_sent - spread;
    }
  });
  return history;
}

}  // namespace terse::test
