// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/transport/deadline.hpp"

namespace terse::detail {

TERSE_CORE std::string deadline_fault(Deadline deadline) {
  const bool has_value = deadline.count() > -Deadline::longest.count();
  return "a deadline must be longer than 0 ms, not " + (has_value
                                                            ? std::to_string(deadline.count()) + " ms"
                                                            : std::string("less than minus a year, or NaN"));
}

}  // namespace terse::detail
