// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "terse/core/draw.hpp"
#include "terse/core/layout.hpp"

// What is trained: a small layout, gradients that are a function of rank and step, and what a rank says of it.

namespace faults {

using Floats = std::vector<float>;

inline terse::Layout layout() {
  terse::Layout all;
  all.add({"embedding", {40, 70}})
      .add({"bias", {70}, 1, 0, false})
      .add({"hidden", {50, 61}})
      .add({"head", {11}});
  return all;
}

inline Floats noise(const terse::Layout& layout, int rank, std::uint64_t step) {
  const terse::Draw draw = terse::Draw::local(5, rank, step, terse::Purpose::user);
  Floats values(static_cast<std::size_t>(layout.size()));
  for (const terse::Segment& segment : layout.segments())
    for (terse::index_t i = segment.offset; i < segment.offset + segment.count; ++i)
      values[static_cast<std::size_t>(i)] =
          static_cast<float>(draw.bits(static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23F - 1.0F;
  return values;
}

/// FNV-1a.
inline std::string hash(const Floats& values) {
  std::uint64_t state = 0xcbf29ce484222325U;
  for (const float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    state = (state ^ bits) * 0x100000001b3U;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state));
  return text;
}

inline void say(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace faults
