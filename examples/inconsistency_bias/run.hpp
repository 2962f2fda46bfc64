// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "methods.hpp"
#include "terse/optimizer/d2.hpp"
#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/decentlam.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/gradient_tracking.hpp"
#include "terse/optimizer/momentum_consensus.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/qg_dm_sgd.hpp"
#include "terse/transport/thread.hpp"

// The methods, compiled by each unit for its family of graphs.

namespace bias {

/// Joins the ranks' square distances from x*, one series each, into a curve. It ends where one of them is not finite.
inline Curve join(const Problem& problem, const std::vector<Vector>& squares) {
  Curve curve;
  for (std::size_t k = 0; k < squares.front().size(); ++k) {
    double sum = 0;
    for (const Vector& rank : squares) sum += rank[k];
    if (!std::isfinite(sum)) break;
    curve.errors.push_back(problem.error_of(sum / problem.ranks));
  }
  curve.diverged = curve.errors.size() < squares.front().size();
  return curve;
}

template <class Recipe>
Curve follow(const Recipe& recipe, const Problem& problem, int iterations) {
  const auto steps = static_cast<std::size_t>(iterations);
  std::vector<Vector> squares(static_cast<std::size_t>(problem.ranks),
                              Vector(steps, std::numeric_limits<double>::quiet_NaN()));
  try {
    terse::ThreadGroup(problem.ranks, std::chrono::seconds(60)).run([&](terse::Threads& transport) {
      const int rank = transport.rank();
      Vector& mine = squares[static_cast<std::size_t>(rank)];
      terse::Layout layout;
      layout.add({"x", {static_cast<terse::index_t>(problem.dimension)}});
      terse::Optimizer optimizer{recipe, transport, layout};
      std::vector<float> parameters(static_cast<std::size_t>(layout.size()), 0.0F), gradient(parameters);
      for (double& square : mine) {
        // The ranks that mix before they need a gradient send now.
        if constexpr (requires { optimizer.begin(parameters); }) optimizer.begin(parameters);
        problem.gradient(rank, parameters, gradient);
        optimizer.step(parameters, gradient);
        square = problem.square_distance(parameters);
      }
    });
  } catch (const terse::error&) {
    // What overflows ends the run of all ranks, and leaves its mark in the series.
    Curve curve = join(problem, squares);
    if (curve.errors.empty() || !(curve.errors.back() > 1e12)) throw;
    return curve;
  }
  return join(problem, squares);
}

/// Rules that the library refuses at compile time on graphs that are not fixed and symmetric, where they diverge.
template <class Rule, class Graph>
Curve run_where_stable(const Rule& rule, const Graph& graph, const Problem& problem,
                       const Settings& settings) {
  const auto rate = static_cast<float>(settings.learning_rate);
  if constexpr (Graph::fixed && Graph::symmetric) {
    using Recipe = terse::ParameterMixing<Rule, terse::Mixing<Graph>>;
    return follow(Recipe{.learning_rate = rate, .momentum_correction = rule, .topology = {graph}}, problem,
                  settings.iterations);
  } else {
    if (!settings.unchecked) return {{}, "needs a graph that is fixed and symmetric", false};
    using Unchecked = terse::graph::Unchecked<Graph>;
    using Recipe = terse::ParameterMixing<Rule, terse::Mixing<Unchecked>>;
    return follow(Recipe{.learning_rate = rate, .momentum_correction = rule, .topology = {Unchecked{graph}}},
                  problem, settings.iterations);
  }
}

template <class Graph>
Curve run_method(Method method, const Graph& graph, const Problem& problem, const Settings& settings) {
  using P = terse::Mixing<Graph>;
  const P topology{graph};
  const auto rate = static_cast<float>(settings.learning_rate), beta = static_cast<float>(settings.beta);
  const terse::MomentumDirection momentum{.momentum = beta};
  const auto steps = [&](const auto& recipe) { return follow(recipe, problem, settings.iterations); };
  switch (method) {
    case Method::dsgd:
      return steps(terse::DSgd<P>{.learning_rate = rate, .topology = topology});
    case Method::dmsgd:
      return steps(
          terse::DmSgd<P>{.learning_rate = rate, .momentum_correction = {momentum}, .topology = topology});
    case Method::da_dmsgd:
      return steps(
          terse::DaDmSgd<P>{.learning_rate = rate, .momentum_correction = {momentum}, .topology = topology});
    case Method::awc_dmsgd:
      return steps(
          terse::AwcDmSgd<P>{.learning_rate = rate, .momentum_correction = {momentum}, .topology = topology});
    case Method::momentum_consensus:
      return run_where_stable(terse::Displacement{.momentum = beta, .omega = 0}, graph, problem, settings);
    case Method::decentlam:
      return run_where_stable(terse::MixedGradient{.momentum = beta}, graph, problem, settings);
    case Method::qg_dmsgd:
      return steps(terse::QgDmSgd<P>{.learning_rate = rate,
                                     .momentum_correction = {.momentum = beta, .decay = beta},
                                     .topology = topology});
    case Method::d2:
      return run_where_stable(terse::ExactDiffusion<terse::GradientDirection>{},
                              terse::graph::Lazy<Graph>{graph}, problem, settings);
    case Method::gradient_tracking:
      return steps(terse::GradientTracking<P>{.learning_rate = rate, .topology = topology});
    case Method::momentum_tracking:
      return steps(terse::MomentumTracking<P>{
          .learning_rate = rate, .momentum_correction = {.momentum = beta}, .topology = topology});
  }
  return {};
}

}  // namespace bias
