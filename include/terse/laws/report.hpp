// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terse::laws {

/// Effort of a check.
struct Options {
  std::uint64_t seed = 1;     ///< seed of examples and of the compressor's draws
  int draws = 2000;           ///< draws for each mean and variance
  int tracking_steps = 2000;  ///< steps of error feedback in "mean tracking"
  float magnitude = 1;        ///< magnitude of ordinary values, for which a threshold or range is meant
  int attempts = 400;         ///< attempts to shrink a failing example
};

/// A law that does not hold, with the smallest example that was found.
struct Failure {
  std::string law;
  std::string what;  ///< the example, the expected value and the actual one
};

/// Result of a `check`.
struct Report {
  std::string compressor;
  std::vector<std::string> passed;
  std::vector<std::string> not_applicable;  ///< laws about properties that this compressor does not claim
  std::vector<Failure> failures;
  std::vector<std::string> notes{};  ///< observations, such as the optional members that were found

  explicit operator bool() const { return failures.empty(); }
  /// Returns true if this law failed.
  bool broke(const std::string& law) const {
    for (const Failure& failure : failures)
      if (failure.law == law) return true;
    return false;
  }
  /// Formats the report for people.
  std::string text() const {
    std::string text = compressor + "\n";
    for (const std::string& note : notes) text += "          " + note + "\n";
    for (const std::string& law : passed) text += "  holds   " + law + "\n";
    for (const std::string& law : not_applicable) text += "  -       " + law + "\n";
    for (const Failure& failure : failures) {
      text += "  BROKEN  " + failure.law + "\n";
      std::string line = "          ";
      for (const char letter : failure.what) {
        line += letter;
        if (letter == '\n') line += "          ";
      }
      text += line + "\n";
    }
    return text;
  }
};

}  // namespace terse::laws
