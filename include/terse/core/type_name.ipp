// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>

#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "terse/core/separate.hpp"
#include "terse/core/type_name.hpp"

namespace terse::detail {

TERSE_CORE std::string demangled(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  // Checkpoints and ranks of other builds know these types by their first names.
  constexpr std::string_view renamed[][2] = {{"terse::recipes::", "terse::"},
                                             {"terse::quantizer::", "terse::"},
                                             {"terse::NoErrorFeedback", "terse::None"},
                                             {"terse::AboveThreshold", "terse::Above"},
                                             {"terse::IsSmallerThan", "terse::Below"},
                                             {"terse::Ef21", "terse::Difference"},
                                             {"terse::ErrorControl", "terse::Controlled"},
                                             {"terse::DropQuantizationError", "terse::Dropping"},
                                             {"terse::MeanOverSenders", "terse::OverSenders"},
                                             {"terse::ForHiddenMatrices", "terse::OnHidden"},
                                             {"terse::Synchronous", "terse::AllAtOnce"},
                                             {"terse::Overlapped", "terse::OnePeriodLate"},
                                             {"terse::Streaming", "terse::Fragments"},
                                             {"terse::AmsgradWith<true>::Of", "terse::AmsgradOf"},
                                             {"terse::AmsgradWith<false>::Of", "terse::AmsgradOf"}};
  const auto goes_on = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; };
  const auto begins = [&](std::size_t at) {
    return at == 0 || !(goes_on(result[at - 1]) || result[at - 1] == ':');
  };
  const auto is_whole = [&](std::size_t at, std::string_view word) {
    return begins(at) && (word.back() == ':' || !goes_on(result[at + word.size()]));
  };
  for (const auto& [now, first] : renamed)
    for (std::size_t at = 0; (at = result.find(now, at)) != result.npos;) {
      const std::string_view left = is_whole(at, now) ? first : now;
      result.replace(at, now.size(), left);
      at += left.size();
    }
  // An observed policy is the policy. Some demanglers write "> >".
  constexpr std::string_view observed = "terse::Observed<";
  for (std::size_t at = 0; (at = result.find(observed, at)) != result.npos;) {
    if (!begins(at)) {
      at += observed.size();
      continue;
    }
    std::size_t close = at + observed.size();
    for (int open = 1; open > 0; ++close) open += result[close] == '<' ? 1 : result[close] == '>' ? -1 : 0;
    const bool spaced = result[--close - 1] == ' ';
    result.erase(close - (spaced ? 1 : 0), spaced ? 2 : 1);
    if (!spaced && result.compare(close, 2, " >") == 0) result.erase(close, 1);
    result.erase(at, observed.size());
  }
  return result;
}

}  // namespace terse::detail
