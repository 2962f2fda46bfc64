// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace train {
namespace {

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(std::min(seconds, 1e9)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(bool shown, std::string title, std::int64_t first, std::int64_t steps, int epochs,
                   const char* what)
    : shown_(shown),
      terminal_(isatty(STDERR_FILENO) == 1),
      title_(std::move(title)),
      first_(first),
      steps_(steps),
      epochs_(epochs),
      what_(what),
      begin_(Clock::now()),
      next_(begin_ + std::chrono::milliseconds(terminal_ ? 500 : 10'000)) {}

void Progress::update(std::int64_t step, double loss, std::int64_t examples) {
  if (!shown_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(terminal_ ? 500 : 10'000);
  const double passed = std::chrono::duration<double>(now - begin_).count();
  const double left = passed / static_cast<double>(step - first_) * static_cast<double>(steps_ - step);
  const std::int64_t epoch = (step - 1) * epochs_ / steps_ + 1;
  std::string line =
      fmt::format("{}  epoch {}/{}  step {}/{}  loss {:.4f}  {:.0f} {}/s  {} left", title_, epoch, epochs_,
                  step, steps_, loss, static_cast<double>(examples) / passed, what_, clock_time(left));
  const std::size_t width = line.size();
  if (terminal_) {
    if (width < width_) line.append(width_ - width, ' ');
    std::fprintf(stderr, "\r%s", line.c_str());
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
  width_ = width;
}

void Progress::finish() {
  if (width_ == 0 || !terminal_) return;
  std::fprintf(stderr, "\r%s\r", std::string(width_, ' ').c_str());
  std::fflush(stderr);
  width_ = 0;
}

}  // namespace train
