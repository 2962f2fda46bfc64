// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terse::laws {

/// How hard to look.
struct Options {
  std::uint64_t seed = 1;     ///< of examples and of the compressor's own draws
  int draws = 2000;           ///< behind every mean and variance
  int tracking_steps = 2000;  ///< of feedback, in "mean tracking"
  float magnitude = 1;        ///< of ordinary values; what a threshold or a fixed range is meant for
  int attempts = 400;         ///< to make a failing example smaller
};

/// A law that does not hold, with the smallest example that was found.
struct Failure {
  std::string law;
  std::string what;  ///< the example, what was expected, what came
};

/// What `check` found out.
struct Report {
  std::string compressor;
  std::vector<std::string> passed;
  std::vector<std::string> not_applicable;  ///< laws about what this compressor does not claim
  std::vector<Failure> failures;
  std::vector<std::string> notes{};  ///< what was understood, such as which optional members there are

  explicit operator bool() const { return failures.empty(); }
  /// Whether this law failed.
  bool broke(const std::string& law) const {
    for (const Failure& failure : failures)
      if (failure.law == law) return true;
    return false;
  }
  /// For people.
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
