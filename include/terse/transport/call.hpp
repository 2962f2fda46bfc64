// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "terse/transport/concept.hpp"

namespace terse::detail {

/// A call as error texts name it: of a step its number, too.
struct CallName {
  const char* what = nullptr;
  std::uint64_t step = 0;
};

/// The call of the library that a thread is in, for the errors of waits: the outermost one of those in place, since a save
/// gathers and a mean splits. Transports read it by themselves, so that no function has to hand it on.
class Call {
 public:
  explicit Call(const char* what, std::uint64_t step = 0) : outer_(current_) {
    if (outer_.what == nullptr) current_ = {what, step};
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { current_ = outer_; }

  /// Returns this thread's; it has no name outside of such calls.
  static CallName current() { return current_; }

 private:
  static inline thread_local CallName current_{};
  CallName outer_;
};

/// Names what a rank waits in.
TERSE_COLD inline std::string place_of(Phase phase, const CallName& call) {
  std::string text = std::string("phase '") + name(phase) + "'";
  if (call.what != nullptr) text += std::string(" of ") + call.what;
  if (call.step > 0) text += " " + std::to_string(call.step);
  return text;
}

/// Advice for ranks that may wait for each other.
inline constexpr const char* same_calls =
    "all ranks make the same calls in the same order (optimizers, steps, checkpoints, means)";

}  // namespace terse::detail
