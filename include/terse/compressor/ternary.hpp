// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "terse/compressor/packed.hpp"
#include "terse/compressor/rounding.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace quantizer {

/// C(x) = s sgn(x) with probability min(1, |x| / s), else 0. S is MaxAbs or ClippedMaxAbs, which has smaller errors
/// but a bias. Wire: bit 0 is 1 for nonzero values, bit 1 is the sign. Source: Wen et al., "TernGrad", NeurIPS 2017,
/// sections 3 and 4 (there, ranks agree on the largest s).
template <class S>
struct TernaryLevels {
  static_assert(std::is_same_v<S, MaxAbs> || std::is_same_v<S, ClippedMaxAbs>,
                "terse: Ternary is scaled by MaxAbs or by ClippedMaxAbs");

  using Statistic = S;
  static constexpr int bits = 2;
  static constexpr bool stochastic = true;
  static constexpr bool unbiased = std::is_same_v<S, MaxAbs>;
  static constexpr bool represents_zero = true;
  static constexpr bool contractive = false;
  /// |e| may be as large as max |y|, so a residual may grow with every step.
  static constexpr bool tracks = false;

  /// E ||C(x)||^2 = max |x| ||x||_1, which gives (sqrt(n) - 1) / 2.
  static constexpr double omega(index_t n) requires unbiased { return detail::max_scaled_omega(n, 1); }

  TERSE_HD static std::uint32_t code(float value, float scale, std::uint32_t random) {
    const float t = detail::smaller(magnitude(value) * detail::per_scale(1, scale), 1);
    return static_cast<std::uint32_t>(Stochastic::round(t, random)) |
           std::bit_cast<std::uint32_t>(value) >> 31 << 1;
  }
  TERSE_HD static float value(std::uint32_t code, float scale) {
    return detail::flipped_if(code >> 1, keep_if((code & 1) != 0, scale));
  }
};

/// C(x) = sgn(x), 0 for 0: votes with abstentions. Codes are those of TernaryLevels.
struct UnitTernaryLevels {
  using Statistic = Unscaled;
  static constexpr int bits = 2;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = false;
  static constexpr bool tracks = false;
  static constexpr bool represents_zero = true;

  TERSE_HD static std::uint32_t code(float value, Unscaled::Scale, std::uint32_t) {
    return static_cast<std::uint32_t>(value != 0) | static_cast<std::uint32_t>(value < 0) << 1;
  }
  TERSE_HD static float value(std::uint32_t code, Unscaled::Scale) {
    return detail::flipped_if(code >> 1, keep_if((code & 1) != 0, 1.0F));
  }
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// The levels -s, 0, s. Wire: 1/4 byte per element and 4 bytes per unit.
template <Statistic S = MaxAbs, Granularity G = PerSegment>
using Ternary = Packed<quantizer::TernaryLevels<S>, G>;

/// The levels -1, 0, 1, without a scale. Wire: n / 4 bytes. The blocks save a pass, as those of UnitSign.
using UnitTernary = Packed<quantizer::UnitTernaryLevels, PerBlock<4096>>;

}  // namespace terse
