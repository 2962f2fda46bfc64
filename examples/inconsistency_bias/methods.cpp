// SPDX-License-Identifier: Apache-2.0
#include "methods.hpp"

#include <cstddef>
#include <variant>

namespace bias {
namespace {

struct Description {
  Method method;
  const char* name;
  const char* title;
};
constexpr std::array descriptions{
    Description{Method::dsgd, "dsgd", "DSGD"},
    Description{Method::dmsgd, "dmsgd", "DmSGD"},
    Description{Method::da_dmsgd, "da-dmsgd", "DA-DmSGD"},
    Description{Method::awc_dmsgd, "awc-dmsgd", "AWC-DmSGD"},
    Description{Method::momentum_consensus, "momentum-consensus", "momentum consensus"},
    Description{Method::decentlam, "decentlam", "DecentLaM"},
    Description{Method::qg_dmsgd, "qg-dmsgd", "QG-DmSGD"},
    Description{Method::d2, "d2", "D2"},
    Description{Method::gradient_tracking, "gradient-tracking", "gradient tracking"},
    Description{Method::momentum_tracking, "momentum-tracking", "momentum tracking"}};

const Description& describe(Method method) {
  for (const Description& one : descriptions)
    if (one.method == method) return one;
  return descriptions.front();
}

bool rests_at_optimum(Method method) {
  return method == Method::d2 || method == Method::gradient_tracking || method == Method::momentum_tracking;
}

/// The rate e of expected_error.
double rate_at_rest(Method method, const Settings& settings) {
  const bool amplified = method == Method::dmsgd || method == Method::awc_dmsgd;
  return amplified ? settings.learning_rate / (1 - settings.beta) : settings.learning_rate;
}

/// K of expected_error, n x n.
Vector kernel(Method method, const Vector& w, std::size_t n, double beta) {
  Vector k = w;
  if (method == Method::awc_dmsgd || method == Method::momentum_consensus) {
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) k[i * n + j] = i == j ? 1 : 0;
  } else if (method == Method::da_dmsgd) {
    // A column at a time: (I - beta W) K = W.
    Vector rest(n * n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) rest[i * n + j] = (i == j ? 1 : 0) - beta * w[i * n + j];
    for (std::size_t j = 0; j < n; ++j) {
      Vector column(n);
      for (std::size_t i = 0; i < n; ++i) column[i] = w[i * n + j];
      column = solve(rest, column);
      for (std::size_t i = 0; i < n; ++i) k[i * n + j] = column[i];
    }
  }
  return k;
}

}  // namespace

const char* name(Method method) { return describe(method).name; }
const char* title(Method method) { return describe(method).title; }

Curve run(Method method, const Problem& problem, const NamedGraph& graph, const Settings& settings) {
  return std::visit([&](const auto& one) { return run_on(one, method, problem, settings); }, graph.graph);
}

std::optional<double> expected_error(Method method, const Problem& problem, const NamedGraph& graph,
                                     const Settings& settings) {
  if (rests_at_optimum(method)) return 0;
  const std::optional<Vector> w = graph.matrix(problem.ranks);
  if (!w) return std::nullopt;
  const std::size_t n = problem.hessians.size(), d = problem.dimension, all = n * d;
  const Vector k = kernel(method, *w, n, settings.beta);
  const double rate = rate_at_rest(method, settings);

  // Unknown is y_i = x_i - x*, so that a small error is not the difference of large numbers.
  Vector system(all * all, 0), right(all, 0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      const double difference = (i == j ? 1 : 0) - (*w)[i * n + j], gain = rate * k[i * n + j];
      for (std::size_t row = 0; row < d; ++row) {
        double* const line = &system[(i * d + row) * all + j * d];
        line[row] += difference;
        double gradient = -problem.linear[j][row];
        for (std::size_t column = 0; column < d; ++column) {
          const double curvature = problem.hessians[j][row * d + column];
          line[column] += gain * curvature;
          gradient += curvature * problem.optimum[column];
        }
        right[i * d + row] -= gain * gradient;
      }
    }
  const Vector apart = solve(std::move(system), std::move(right));
  double sum = 0;
  for (const double value : apart) sum += value * value;
  return problem.error_of(sum / static_cast<double>(n));
}

}  // namespace bias
