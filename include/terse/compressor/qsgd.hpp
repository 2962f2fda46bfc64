// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "terse/compressor/packed.hpp"
#include "terse/compressor/rounding.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

TERSE_NUMERICS_BEGIN

namespace quantizer {

/// C(x) = sgn(x) * level / L * norm, level = floor(L |x| / norm + u), u uniform in (0, 1), L = 2^(b-1) - 1.
/// Norm is EuclideanNorm or MaxAbs. Wire: the level, and the sign in the highest bit.
/// Source: Alistarh et al., "QSGD", NeurIPS 2017, section 3.1 (without its entropy code).
template <int Bits, class Norm>
struct QsgdLevels {
  static_assert(Bits >= 2 && Bits <= 8, "terse: Qsgd has 2 to 8 bits, one of them for the sign");
  static_assert(std::is_same_v<Norm, EuclideanNorm> || std::is_same_v<Norm, MaxAbs>,
                "terse: Qsgd is scaled by EuclideanNorm or by MaxAbs");

  using Statistic = Norm;
  static constexpr int bits = Bits;
  static constexpr int levels = (1 << (Bits - 1)) - 1;
  static constexpr bool stochastic = true;
  static constexpr bool unbiased = true;
  static constexpr bool represents_zero = true;
  static constexpr bool contractive = false;
  /// |e| <= norm / L: below max |y| for MaxAbs, but not for the Euclidean norm of a long unit.
  static constexpr bool tracks = std::is_same_v<Norm, MaxAbs> && levels >= 2;

  static constexpr double omega(index_t n) {
    if constexpr (std::is_same_v<Norm, MaxAbs>) return detail::max_scaled_omega(n, levels);
    // QSGD, lemma 3.1.
    const double elements = static_cast<double>(n), few = elements / (levels * levels);
    const double many = detail::square_root(elements) / levels;
    return few < many ? few : many;
  }

  TERSE_HD static std::uint32_t code(float value, float norm, std::uint32_t random) {
    const float t = detail::smaller(magnitude(value) * detail::per_scale(levels, norm), levels);
    return static_cast<std::uint32_t>(Stochastic::round(t, random)) |
           std::bit_cast<std::uint32_t>(value) >> 31 << (Bits - 1);
  }
  /// level / L is at most 1, and exactly 1 for level L, so the product with `norm` can't overflow.
  TERSE_HD static float value(std::uint32_t code, float norm) {
    const auto level = static_cast<float>(static_cast<std::int32_t>(code & levels));
    return detail::flipped_if(code >> (Bits - 1), level * (1.0F / levels) * norm);
  }
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// An unbiased quantizer of `Bits` bits per element. Wire: Bits / 8 bytes per element and 4 bytes per unit.
template <int Bits, Statistic Norm = EuclideanNorm, Granularity G = PerBlock<512>>
using Qsgd = Packed<quantizer::QsgdLevels<Bits, Norm>, G>;

}  // namespace terse
