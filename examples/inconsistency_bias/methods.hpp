// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "graphs.hpp"
#include "problem.hpp"

namespace bias {

enum class Method {
  dsgd,
  dmsgd,
  da_dmsgd,
  awc_dmsgd,
  momentum_consensus,
  decentlam,
  qg_dmsgd,
  d2,
  gradient_tracking,
  momentum_tracking
};
inline constexpr std::array all_methods{Method::dsgd,
                                        Method::dmsgd,
                                        Method::da_dmsgd,
                                        Method::awc_dmsgd,
                                        Method::momentum_consensus,
                                        Method::decentlam,
                                        Method::qg_dmsgd,
                                        Method::d2,
                                        Method::gradient_tracking,
                                        Method::momentum_tracking};

/// On the command line and in files, such as "da-dmsgd".
const char* name(Method method);
/// In tables and pictures, such as "DA-DmSGD".
const char* title(Method method);

struct Settings {
  double learning_rate = 0;
  double beta = 0;
  int iterations = 0;
  bool unchecked = false;  ///< run what the library refuses, too
};

/// The error after each iteration, see Problem::error_of, from x_i = 0. A curve that diverges ends early.
struct Curve {
  std::vector<double> errors;
  std::string refused;  ///< why there is none
  bool diverged = false;
};

/// Runs the library's own optimizer on threads, one for each rank, with full gradients.
Curve run(Method method, const Problem& problem, const NamedGraph& graph, const Settings& settings);

/// Its parts, one for each family of graphs.
Curve run_on(const FixedSymmetric& graph, Method method, const Problem& problem, const Settings& settings);
Curve run_on(const Varying& graph, Method method, const Problem& problem, const Settings& settings);

/// The error of the method's fixed point in exact arithmetic. At rest, with G(x) the stacked gradients,
///
///     (I - W) x + e K G(x) = 0
///
///     K = W                     adapt, then combine: DSGD, DmSGD, DecentLaM, QG-DmSGD
///     K = I                     adapt with combine: AWC-DmSGD, momentum consensus
///     K = W (I - beta W)^-1     DA-DmSGD
///     e = learning_rate, or learning_rate / (1 - beta) where momentum is never mixed: DmSGD, AWC-DmSGD
///
/// which for two-node, on the mode of eigenvalue lambda, is |x| = e k / (1 - lambda + e k), k that of K. D2 and the
/// tracking methods rest at x* on any graph; for others there is nothing where W changes from round to round.
std::optional<double> expected_error(Method method, const Problem& problem, const NamedGraph& graph,
                                     const Settings& settings);

}  // namespace bias
