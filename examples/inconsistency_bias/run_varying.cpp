// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

namespace bias {

Curve run_on(const Varying& graph, Method method, const Problem& problem, const Settings& settings) {
  return run_method(method, graph, problem, settings);
}

}  // namespace bias
