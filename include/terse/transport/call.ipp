// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "terse/core/separate.hpp"
#include "terse/transport/call.hpp"

namespace terse::detail {

TERSE_CORE const char* name(Verb verb) {
  static constexpr std::array<const char*, static_cast<std::size_t>(Verb::count_)> names{
      "an agreement without a name",
      "step",
      "the beginning of step",
      "the construction of an optimizer",
      "a save",
      "a load",
      "the opening of a folder",
      "StopRequest::asked",
      "Pipeline::train",
      "Pipeline::evaluate",
      "the construction of a pipeline",
      "the construction of a grid",
      "Grid::agree",
      "Grid::clip_scale",
      "a broadcast",
      "a broadcast of one value",
      "a mean",
      "a mean of one number",
      "an all_gather",
      "an all_gather of one value",
      "a comparison",
      "a split",
      "the making of a mailbox",
      "a measurement",
      "a comparison of settings",
      "a carry_over (also of ranks that join)"};
  return names[static_cast<std::size_t>(verb)];
}

TERSE_CORE std::string text_of(const CallName& call) {
  return call.step > 0 ? std::string(name(call.verb)) + " " + std::to_string(call.step) : name(call.verb);
}

TERSE_CORE std::string place_of(Phase phase, const CallName& call) {
  const std::string text = std::string("phase '") + name(phase) + "'";
  return call.verb == Verb::none ? text : text + " of " + text_of(call);
}

}  // namespace terse::detail
