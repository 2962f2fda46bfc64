// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace train {

/// One line on stderr that tells how far a run has come: rewritten in place on a terminal, at most twice a
/// second; elsewhere a line every ten seconds.
class Progress {
 public:
  /// `first` of `steps` steps are done already. Shows nothing unless `shown`. `what` are examples called.
  Progress(bool shown, std::string title, std::int64_t first, std::int64_t steps, int epochs,
           const char* what = "pictures");

  /// `step` steps are done; `examples` have been trained on since the start, over all ranks; `loss` is a
  /// running mean.
  void update(std::int64_t step, double loss, std::int64_t examples);
  /// Clears the line for what comes next.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  bool shown_, terminal_;
  std::string title_;
  std::int64_t first_, steps_;
  int epochs_;
  const char* what_;
  Clock::time_point begin_, next_;
  std::size_t width_ = 0;
};

}  // namespace train
