// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace terse::checkpoint::detail {

/// All dtypes of the format, and the bits of an element.
inline constexpr std::array<std::pair<std::string_view, std::size_t>, 22> dtypes = {
    {{"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

/// Returns the bits of an element; 0 for an unknown dtype.
inline std::size_t bits_of(const std::string& dtype) {
  for (const auto& [name, bits] : dtypes)
    if (name == dtype) return bits;
  return 0;
}

}  // namespace terse::checkpoint::detail
