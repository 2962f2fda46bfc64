// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "terse/core/config.hpp"
#include "terse/core/error.hpp"

namespace terse::detail {

/// The error that has ended an optimizer's communication, if there was one: an interrupted round can't be continued.
class Failure {
 public:
  /// Keeps the exception that is being handled, except for errors after which steps can continue. These are refused arguments, ranks
  /// that start differently, and values that are not finite, for which all messages of the step have arrived.
  TERSE_COLD void keep();
  /// Keeps any exception that is being handled, since it was thrown while an open round was advanced.
  TERSE_COLD void keep_any() { error_ = std::current_exception(); }
  /// Throws the stored error again, if there is one.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/optimizer/failure.ipp"
#endif
