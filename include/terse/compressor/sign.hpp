// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/packed.hpp"
#include "terse/compressor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

/// C(y) = s * sgn(y), sgn(y) = +1 unless y < 0, so that both zeros are +. One bit per element.
/// Source: Seide et al., "1-bit SGD", Interspeech 2014; Tang et al., "1-bit Adam", ICML 2021, section 4.
template <class S>
struct SignBit {
  using Statistic = S;
  static constexpr int bits = 1;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;

  TERSE_HD static std::uint32_t code(float value, float, std::uint32_t) { return value < 0 ? 0U : 1U; }
  TERSE_HD static float value(std::uint32_t code, float scale) { return code != 0 ? scale : -scale; }
};

TERSE_NUMERICS_END

/// Signs with one scale for each unit: S is RootMeanSquare or MeanAbs, G is PerSegment, PerBlock<N> or Whole.
/// Wire: n / 8 bytes of bits and 4 bytes for each unit.
template <Statistic S = RootMeanSquare, Granularity G = PerSegment>
using ScaledSign = Packed<SignBit<S>, G>;

/// 1-bit Adam's own: root mean square, one scale for each segment.
using Sign = ScaledSign<>;

}  // namespace terse
