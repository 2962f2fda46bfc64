// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <type_traits>

#include "terse/compressor/packed.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace quantizer {

/// C(y) = s * sgn(y), sgn(y) = +1 unless y < 0, so both zeros are +. One bit per element.
/// Source: Seide et al., "1-bit SGD", Interspeech 2014; Tang et al., "1-bit Adam", ICML 2021, section 4.
template <class S>
struct SignBit {
  using Statistic = S;
  using CodesWithoutScale = SignBit;
  static constexpr int bits = 1;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = std::is_same_v<S, MeanAbs>;
  static constexpr bool tracks = contractive || std::is_same_v<S, RootMeanSquare>;
  static constexpr bool represents_zero = false;
  /// ||x||^2 - ||x - C(x)||^2 = ||x||_1^2 / n >= ||x||^2 / n, with equality for one nonzero element.
  static constexpr double delta(index_t n) requires contractive {
    return n > 1 ? 1.0 / static_cast<double>(n) : 1;
  }

  TERSE_HD static std::uint32_t code(float value, float, std::uint32_t) { return value < 0 ? 0U : 1U; }
  TERSE_HD static float value(std::uint32_t code, float scale) { return code != 0 ? scale : -scale; }

  /// A coder that computes code and value by one comparison.
  class Coder {
   public:
    using Quantizer = SignBit;
    Coder() = default;
    TERSE_HD Coder(float scale) : scale_(scale) {}
    TERSE_HD Coded operator()(float value, std::uint32_t) const {
      const std::uint32_t negative = value < 0 ? 0x80000000U : 0U;
      return {negative == 0 ? 1U : 0U, std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale_) ^ negative)};
    }

   private:
    float scale_ = 0;
  };
};

/// C(y) = the mean of the unit's elements on y's side of zero. One bit per element.
/// Source: Seide et al., "1-bit SGD", Interspeech 2014, section 3 (there, a unit is a column of a matrix).
struct TwoMeanBit {
  using Statistic = TwoMeans;
  using CodesWithoutScale = TwoMeanBit;
  static constexpr int bits = 1;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = true;
  static constexpr bool tracks = true;
  static constexpr bool represents_zero = false;
  /// The contraction bound of MeanAbs, applied to the at most n elements on each side of zero.
  static constexpr double delta(index_t n) { return n > 1 ? 1.0 / static_cast<double>(n) : 1; }

  TERSE_HD static std::uint32_t code(float value, TwoMeans::Scale, std::uint32_t) {
    return value < 0 ? 0U : 1U;
  }
  TERSE_HD static float value(std::uint32_t code, TwoMeans::Scale scale) {
    return keep_if(code != 0, scale.high, scale.low);
  }
};

/// C(y) = sgn(y), as in SignBit, but without a scale: for votes, whose size has no meaning. Source: Bernstein et
/// al., "signSGD", ICML 2018.
struct UnitSignBit {
  using Statistic = Unscaled;
  static constexpr int bits = 1;
  static constexpr bool stochastic = false;
  static constexpr bool unbiased = false;
  static constexpr bool contractive = false;
  static constexpr bool tracks = false;
  static constexpr bool represents_zero = false;

  TERSE_HD static std::uint32_t code(float value, Unscaled::Scale, std::uint32_t) {
    return value < 0 ? 0U : 1U;
  }
  TERSE_HD static float value(std::uint32_t code, Unscaled::Scale) { return code != 0 ? 1.0F : -1.0F; }
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// Signs with one scale per unit: S is RootMeanSquare or MeanAbs, G is PerSegment, PerBlock<N> or Whole.
/// Wire: n / 8 bytes of bits and 4 bytes per unit.
template <Statistic S = RootMeanSquare, Granularity G = PerSegment>
using ScaledSign = Packed<quantizer::SignBit<S>, G>;

/// The compressor of 1-bit Adam: root mean square, one scale per segment.
using Sign = ScaledSign<>;

/// The compressor of 1-bit SGD: a mean for each side of zero. Wire: n / 8 bytes of bits and 8 bytes per unit.
template <Granularity G = PerSegment>
using TwoMeanSign = Packed<quantizer::TwoMeanBit, G>;

/// Signs without a scale. Wire: n / 8 bytes of bits. Blocks without scales save the pass that would measure them.
using UnitSign = Packed<quantizer::UnitSignBit, PerBlock<4096>>;

}  // namespace terse
