// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>

#include "terse/checkpoint/stop_signal.hpp"
#include "terse/core/separate.hpp"

namespace terse::checkpoint {

TERSE_CORE StopSignals::StopSignals(std::initializer_list<int> numbers) {
  detail::received_signal = 0;
  struct sigaction action {};
  action.sa_handler = &detail::note_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  before_.reserve(numbers.size());
  for (const int signal : numbers) {
    struct sigaction before {};
    if (::sigaction(signal, &action, &before) != 0) {
      const std::string why = std::strerror(errno);
      put_back();
      throw usage_error("signal " + std::to_string(signal) + " can't ask a run to stop: " + why);
    }
    before_.emplace_back(signal, before);
  }
}

}  // namespace terse::checkpoint
