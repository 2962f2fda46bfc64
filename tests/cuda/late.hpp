// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stand_in.hpp"

namespace {

/// Sets the stand-in up for one case.
struct Late {
  Late(int function, int message) {
    stand_in::connecting_blocks = true;
    stand_in::function_delay = function;
    stand_in::message_delay = message;
  }
  ~Late() {
    stand_in::connecting_blocks = stand_in::remote_errors = false;
    stand_in::function_delay = stand_in::message_delay = 0;
  }
};

}  // namespace
