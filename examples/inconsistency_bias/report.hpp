// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "methods.hpp"
#include "options.hpp"

namespace bias {

/// How a curve ends.
enum class End {
  at_rest,    ///< at its own bias, if the fixed point is known: within 1 %
  rounding,   ///< at what fp32 rounding leaves; the method's fixed point is nearer to x*
  falling,    ///< still moving: more iterations would tell
  elsewhere,  ///< at rest away from the fixed point: a bug, or settings that fp32 can't resolve
  diverged,
  refused
};

/// What became of one method on one graph.
struct Result {
  Method method;
  Curve curve;
  std::optional<double> expected;  ///< at the exact fixed point, see expected_error
  double limit = 0;                ///< mean of the last tenth of the curve, unless there is none
  End end = End::refused;
};
struct Experiment {
  std::string graph;
  std::vector<Result> results;  ///< in the order of all_methods
};

/// Works out limit and end.
Result judge(Method method, Curve curve, std::optional<double> expected, const Problem& problem,
             const Settings& settings);

/// One graph: a line for each method. Several: one for each graph.
std::string format_table(const Options& options, const Problem& problem,
                         const std::vector<Experiment>& experiments);

// These write a file by train::write_output, and throw input_error where it can't be.

/// Settings and, by name, methods with limit, expected and relative_error (null where there is none), end, and
/// iterations; with --graph all these are in `graphs`, by name.
void write_json(const Options& options, const std::vector<Experiment>& experiments);
/// One row for each iteration: graph, method, iteration (from 1), error.
void write_csv(const Options& options, const std::vector<Experiment>& experiments);
/// An SVG picture of the errors against iterations.
void write_plot(const Options& options, const Problem& problem, const Experiment& experiment);

}  // namespace bias
