// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>

// Of overlap_wait and swarm_wait.

/// Argument `index`, a number above 0 up to a million: `otherwise` where it isn't given, nothing where it isn't one.
template <class Number>
std::optional<Number> argument(int argc, char** argv, int index, Number otherwise) {
  if (index >= argc) return otherwise;
  const char* const end = argv[index] + std::strlen(argv[index]);
  Number value{};
  const std::from_chars_result result = std::from_chars(argv[index], end, value);
  if (result.ec != std::errc{} || result.ptr != end || !(value > 0 && value <= 1'000'000))
    return std::nullopt;
  return value;
}
