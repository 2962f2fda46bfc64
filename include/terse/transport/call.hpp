// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "terse/transport/concept.hpp"

namespace terse::detail {

/// Calls of the library in which ranks wait for each other. Their numbers are sent to other ranks: append new ones.
enum class Verb : std::uint8_t {
  none,
  step,
  begin,
  optimizer,
  save,
  load,
  folder,
  stop_request,
  train,
  evaluate,
  pipeline,
  grid,
  grid_agree,
  grid_clip_scale,
  broadcast,
  broadcast_one,
  mean,
  mean_one,
  all_gather,
  all_gather_one,
  equal,
  split,
  mailbox,
  measure,
  agree,
  carry_over,
  count_
};
const char* name(Verb verb);

/// Returns the number by which the ranks of an agreement check that they are in the same call. A step and its beginning
/// have one number, since one rank may send in `begin` the message that another rank, without `begin`, sends in `step`.
/// Two different numbers differ in half of their bits.
constexpr std::uint32_t tag_of(Verb verb) {
  return (verb == Verb::begin ? static_cast<std::uint32_t>(Verb::step) : static_cast<std::uint32_t>(verb)) *
         0x9E3779B1U;
}

/// Name of a call in error texts; the name of a step includes its number.
struct CallName {
  Verb verb = Verb::none;
  std::uint64_t step = 0;

  /// Checks whether messages of two calls belong to each other.
  bool meets(const CallName& other) const { return tag_of(verb) == tag_of(other.verb) && step == other.step; }
};

/// The call of the library in which a thread is, for the errors of waits. If calls are nested, the outermost one counts,
/// since a save gathers and a mean splits. Transports read it directly, so that no function has to pass it.
class Call {
 public:
  explicit Call(Verb verb, std::uint64_t step = 0) : outer_(current_) {
    if (outer_.verb == Verb::none) current_ = {verb, step};
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { current_ = outer_; }

  /// Returns the call of this thread; outside of such calls it has no name.
  static CallName current() { return current_; }

 private:
  static inline thread_local CallName current_{};
  CallName outer_;
};

/// Returns the name of a call for error texts.
TERSE_COLD std::string text_of(const CallName& call);
/// Returns the phase and the call in which a rank waits, for error texts.
TERSE_COLD std::string place_of(Phase phase, const CallName& call);

/// Advice for ranks that may be waiting for each other.
inline constexpr const char* same_calls =
    "all ranks make the same calls in the same order (optimizers, steps, checkpoints, means)";

}  // namespace terse::detail

#ifndef TERSE_SEPARATE
#include "terse/transport/call.ipp"
#endif
