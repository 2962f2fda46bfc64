// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "terse/compressor/packed.hpp"
#include "terse/compressor/rounding.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace detail {

/// The smallest element of a unit, and the step that reaches the largest one in 2^Bits - 1 steps.
template <int Bits>
struct LowAndStep : MinAndMax {
  struct Scale {
    float low = 0, step = 0;
    bool operator==(const Scale&) const = default;
  };
  TERSE_HD static Scale finish(const float* total, index_t count) {
    const MinAndMax::Scale ends = MinAndMax::finish(total, count);
    return {ends.low, (ends.high - ends.low) / ((1 << Bits) - 1)};
  }
};

}  // namespace detail

namespace quantizer {

/// C(x) = low + c * step, c = round((x - low) / step), clipped to 0 ... K = 2^b - 1. Constant units are decoded
/// exactly. If an offset is large relative to the range, it only costs its own rounding. Source: Gan et al.,
/// "Bagua", VLDB 2021 (8 bits); Markov et al., "CGX", Middleware 2022 (1 to 8 bits).
template <int Bits, class Rounding>
struct MinMaxLevels {
  static_assert(Bits >= 1 && Bits <= 8, "terse: MinMax has 1 to 8 bits");

  using Statistic = detail::LowAndStep<Bits>;
  using Scale = typename Statistic::Scale;
  static constexpr int bits = Bits;
  static constexpr int highest = (1 << Bits) - 1;
  static constexpr bool stochastic = Rounding::stochastic;
  static constexpr bool unbiased = stochastic;
  static constexpr bool represents_zero = false;
  /// Zeros between two large elements are decoded with an error of up to half a step, and there may be many of them.
  static constexpr bool contractive = false;
  /// |e| <= step <= 2 max |y| / K: below max |y|.
  static constexpr bool tracks = Bits >= 2;

  /// The two ends are exact, and their squares sum to at least (K step)^2 / 2; the others have E e^2 <= step^2 / 4.
  static constexpr double omega(index_t n) requires unbiased {
    return n > 2 ? static_cast<double>(n - 2) / (2.0 * highest * highest) : 0;
  }

  /// The coder of a unit's elements.
  class Coder {
   public:
    using Quantizer = MinMaxLevels;
    TERSE_HD Coder(Scale scale) : scale_(scale), per_step_(detail::per_scale(1, scale.step)) {}
    TERSE_HD Coded operator()(float value, std::uint32_t random) const {
      float t = (value - scale_.low) * per_step_;
      // A unit's own elements lie between its ends, up to rounding errors that `round` removes. Masked elements get
      // meaningless codes.
      if constexpr (stochastic) t = detail::between(t, 0, highest);
      const std::uint32_t code = static_cast<std::uint32_t>(Rounding::round(t, random)) & highest;
      return {code, MinMaxLevels::value(code, scale_)};
    }

   private:
    Scale scale_;
    float per_step_;
  };

  TERSE_HD static std::uint32_t code(float value, Scale scale, std::uint32_t random) {
    return Coder(scale)(value, random).code;
  }
  TERSE_HD static float value(std::uint32_t code, Scale scale) {
    return scale.low + static_cast<float>(static_cast<std::int32_t>(code)) * scale.step;
  }
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// A quantizer of `Bits` bits per element between a unit's smallest and largest element. Wire: Bits / 8 bytes per
/// element and 8 bytes per unit.
template <int Bits, class Rounding = Nearest, Granularity G = PerSegment>
using MinMax = Packed<quantizer::MinMaxLevels<Bits, Rounding>, G>;

}  // namespace terse
