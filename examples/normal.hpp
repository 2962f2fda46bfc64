// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "terse/core/draw.hpp"

/// Standard normal numbers by Box and Muller: the standard library's differ between implementations.
class Normal {
 public:
  explicit Normal(const terse::Draw& draw) : draw_(draw) {}
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - u, for u may be 0
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  double uniform() { return static_cast<double>(draw_.bits(next_++) >> 11) * 0x1p-53; }

  terse::Draw draw_;
  std::uint64_t next_ = 0;
};
