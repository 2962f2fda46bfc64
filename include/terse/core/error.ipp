// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdarg>
#include <cstdio>

#include "terse/core/error.hpp"
#include "terse/core/separate.hpp"

namespace terse::detail {

TERSE_CORE std::string sentence(const char* format, ...) {
  std::va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string text(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, format, values)), ' ');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(values);
  return text;
}

}  // namespace terse::detail

namespace terse {

TERSE_CORE std::string error::compose(const std::string& sentence, int rank, std::int64_t step) {
  if (rank < 0 && step < 0) return "terse: " + sentence;
  if (step < 0) return detail::sentence("terse: rank %d: ", rank) + sentence;
  const auto number = static_cast<long long>(step);
  if (rank < 0) return detail::sentence("terse: step %lld: ", number) + sentence;
  return detail::sentence("terse: rank %d, step %lld: ", rank, number) + sentence;
}

}  // namespace terse
