// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

// Like core/layout.hpp, this header uses only C++17.

namespace terse::detail {

/// Checks whether text is UTF-8 by RFC 3629: shortest forms, no surrogates, up to U+10FFFF.
constexpr bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const unsigned lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    if (lead < 0xC2 || lead > 0xF4) return false;
    const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    // After these first bytes the second byte has a narrower range, which excludes longer forms, surrogates and codes
    // above U+10FFFF.
    unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (int k = 0; k < more; ++k, ++i) {
      if (i == text.size()) return false;
      const unsigned next = static_cast<unsigned char>(text[i]);
      if (next < least || next > most) return false;
      least = 0x80, most = 0xBF;
    }
  }
  return true;
}

}  // namespace terse::detail
