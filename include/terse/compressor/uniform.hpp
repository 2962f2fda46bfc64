// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "terse/compressor/packed.hpp"
#include "terse/compressor/rounding.hpp"
#include "terse/executor/statistic.hpp"

namespace terse {

/// A codebook of 2^b levels t / 2^(b-1), t = -2^(b-1) ... 2^(b-1) - 1: from -s to one step below s. Requires 2 bits or
/// more.
struct Asymmetric {
  static constexpr int divisor(int bits) { return 1 << (bits - 1); }
  static constexpr int highest(int bits) { return divisor(bits) - 1; }
};

/// A codebook of 2^b - 1 levels t / L, t = -L ... L, L = 2^(b-1) - 1: both ends and zero. With one bit, -s and s.
struct Symmetric {
  static constexpr int divisor(int bits) { return bits == 1 ? 1 : (1 << (bits - 1)) - 1; }
  static constexpr int highest(int bits) { return divisor(bits); }
};

TERSE_NUMERICS_BEGIN

namespace quantizer {

/// Evenly spaced levels over [-s, s]: t = round(x / s * D), clipped to the codebook; C(x) = t / D * s. D is 2^(b-1) in
/// the asymmetric codebook, 2^(b-1) - 1 in the symmetric one. S is MaxAbs or TwoRootMeanSquares.
/// Wire: code t + D; the symmetric codebook's last code, which is not sent, decodes to s.
/// Source: Wang et al., "Fine-tuning language models over slow networks using activation compression with guarantees",
/// NeurIPS 2022 (asymmetric, nearest, both scales).
template <int Bits, class Rounding, class Book, class S>
struct UniformLevels {
  static_assert(Bits >= 1 && Bits <= 8, "terse: Uniform has 1 to 8 bits");
  static_assert(
      Bits >= 2 || std::is_same_v<Book, Symmetric>,
      "terse: Uniform with one bit needs the Symmetric book; the asymmetric one would have the levels "
      "-s and 0");
  static_assert(std::is_same_v<S, MaxAbs> || std::is_same_v<S, TwoRootMeanSquares>,
                "terse: Uniform is scaled by MaxAbs or by TwoRootMeanSquares");

  using Statistic = S;
  static constexpr int bits = Bits;
  static constexpr bool stochastic = Rounding::stochastic;
  static constexpr int divisor = Book::divisor(Bits), highest = Book::highest(Bits);
  static constexpr bool clips = !std::is_same_v<S, MaxAbs>;
  static constexpr bool represents_zero = Bits >= 2;
  static constexpr bool unbiased = stochastic && highest == divisor && !clips;

  /// The step relative to the unit's largest magnitude, or to its root mean square if the scale clips.
  static constexpr double step = (clips ? 2.0 : 1.0) / divisor;
  /// Rounding to nearest with a level at zero has |e| <= |x|. For `delta` the step must be so small that not all
  /// elements can become 0.
  static constexpr bool contractive = !stochastic && represents_zero && (!clips || step < 2);
  /// Stochastic rounding has max |e| <= q max |y|, q < 1: q = step or, clipped at T root mean squares of n elements,
  /// max(step, 1 - T / sqrt(n)).
  static constexpr bool tracks = contractive || (stochastic && represents_zero && step < 1);

  /// With h = step / 2, unclipped elements have e^2 <= min(x^2, h^2).
  static constexpr double delta(index_t n) requires contractive {
    const double elements = n > 1 ? static_cast<double>(n) : 1, h = step / 2;
    if constexpr (clips) {
      // Beyond the codebook's end T, x^2 - e^2 = 2 |x| T - T^2. As a share of x^2 this is smallest for the largest
      // |x|, sqrt(n) root mean squares.
      const double end = step * highest, root = detail::square_root(elements), x = root > end ? root : end;
      return (1 - h * h) * (2 * x * end - end * end) / (x * x);
    } else {
      // In the worst case one element is s, with e = 0 or, at the asymmetric codebook's upper end, a step; all others
      // have h.
      const double lost = highest == divisor ? 0 : step;
      return (1 - lost * lost) / (1 + (elements - 1) * h * h);
    }
  }

  static constexpr double omega(index_t n) requires unbiased {
    // With one bit, E e^2 = s^2 - x^2, worst for one nonzero element.
    if constexpr (Bits == 1) return n > 1 ? static_cast<double>(n - 1) : 0;
    return detail::max_scaled_omega(n, divisor);
  }

  /// The coder of a unit's elements.
  class Coder {
   public:
    using Quantizer = UniformLevels;
    TERSE_HD Coder(float scale)
        : scale_(scale), per_step_(detail::per_scale(Bits == 1 ? 0.5F : divisor, scale)) {}
    TERSE_HD Coded operator()(float value, std::uint32_t random) const {
      const std::uint32_t code = nearby(value, random);
      return {code, UniformLevels::value(code, scale_)};
    }

   private:
    TERSE_HD std::uint32_t nearby(float value, std::uint32_t random) const {
      float t = value * per_step_;
      if constexpr (Bits == 1 && !stochastic) {
        return value < 0 ? 0U : 1U;
      } else if constexpr (Bits == 1) {
        return static_cast<std::uint32_t>(Rounding::round(detail::between(t, -0.5F, 0.5F) + 0.5F, random));
      } else {
        // A unit's own elements lie within its largest magnitude, up to rounding errors that `round` removes. Masked
        // elements get meaningless codes.
        if constexpr (clips || stochastic)
          t = detail::between(t, -divisor, highest);
        else if constexpr (highest < divisor)
          t = detail::at_most(highest, t);
        return static_cast<std::uint32_t>(Rounding::round(t, random) + divisor) & ((1U << Bits) - 1);
      }
    }
    float scale_, per_step_;
  };

  TERSE_HD static std::uint32_t code(float value, float scale, std::uint32_t random) {
    return Coder(scale)(value, random).code;
  }
  /// |t / D| | <= 1, and 1 at the ends, for every D here.
  TERSE_HD static float value(std::uint32_t code, float scale) {
    if constexpr (Bits == 1) return code != 0 ? scale : -scale;
    auto t = static_cast<float>(static_cast<std::int32_t>(code) - divisor);
    // The symmetric codebook does not use its last code.
    if constexpr (highest == divisor) t = detail::at_most(highest, t);
    return t * (1.0F / divisor) * scale;
  }
};

}  // namespace quantizer

TERSE_NUMERICS_END

/// A uniform quantizer of `Bits` bits per element: Rounding is Nearest or Stochastic, Book is Asymmetric or Symmetric.
/// Wire: Bits / 8 bytes per element and 4 bytes per unit.
template <int Bits, class Rounding = Nearest, class Book = Asymmetric, Statistic S = MaxAbs,
          Granularity G = PerSegment>
using Uniform = Packed<quantizer::UniformLevels<Bits, Rounding, Book, S>, G>;

}  // namespace terse
