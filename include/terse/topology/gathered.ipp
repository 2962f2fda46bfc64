// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "terse/core/separate.hpp"
#include "terse/topology/gathered.hpp"

namespace terse::detail {

TERSE_CORE void throw_weight(double weight, int rank, std::uint64_t step) {
  throw usage_error(
      "the weight of this rank's message is " + std::to_string(weight) +
          ", and must be finite and at least 0: the number of its examples since the last exchange",
      rank, static_cast<std::int64_t>(step));
}

TERSE_CORE void throw_no_weight(int rank, std::uint64_t step) {
  throw usage_error(
      "the messages of all ranks have a weight of 0, so that they have no mean: set each rank's weight to "
      "the "
      "number of its examples since the last exchange before the step in which ranks exchange",
      rank, static_cast<std::int64_t>(step));
}

}  // namespace terse::detail
