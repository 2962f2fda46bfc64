// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/core/separate.hpp"
#include "terse/optimizer/failure.hpp"

namespace terse::detail {

TERSE_CORE void Failure::keep() {
  try {
    throw;
  } catch (const usage_error&) {
  } catch (const mismatch_error&) {
  } catch (const non_finite_error&) {
  } catch (...) {
    keep_any();
  }
}

}  // namespace terse::detail
