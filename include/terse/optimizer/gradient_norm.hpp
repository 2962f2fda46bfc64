// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "terse/core/half.hpp"
#include "terse/executor/statistic.hpp"
#include "terse/transport/channel.hpp"

namespace terse::detail {

TERSE_NUMERICS_BEGIN

template <Number G>
struct GradientSample {
  const G* gradients;
  float scale;
  using StreamsOf = GradientSample;
  TERSE_HD auto streams() { return reads(gradients); }
  TERSE_HD Sample operator()(const Piece&, index_t i, bool) const {
    return sanitized(widened(gradients[i]) * scale);
  }
};

TERSE_NUMERICS_END

/// The norm of the gradients on which ranks agree before a step, if the step needs it.
template <Executor E>
class GradientNorm {
  /// Sums of squares, negated (even 0) if a gradient is not finite.
  using Partials = Assembly<float, Channel>;

 public:
  struct Norm {
    double value = 0;  ///< sqrt(mean over ranks of ||g_i||^2)
    int culprit = -1;  ///< the first rank whose gradient is not finite
  };

  GradientNorm(Channel& channel, E executor, const Layout& layout)
      : everyone_(channel),
        range_(layout.range()),
        scratch_(reduction_scratch<SumOfSquares>(executor, range_, Units{0, true}), uninitialized),
        square_(1),
        bad_(1) {}

  /// Returns the number of bytes that a rank sends for the norm among `size` ranks.
  static constexpr index_t bytes(int size) { return Partials::bytes(size); }
  /// Returns the norm. Collective. Cost: one read-only pass, and 8 bytes to each peer.
  template <Number G>
  Norm operator()(Channel& channel, E executor, const G* gradients, float gradient_scale,
                  std::uint64_t step) {
    fill(executor, bad_.all(), 0U);
    reduce<SumOfSquares>(executor, range_, Units{0, true}, NoMask{}, NoPackets{},
                         GradientSample<G>{gradients, gradient_scale}, scratch_.all(), square_.all(),
                         bad_.data());
    float square = 0;
    std::uint32_t bad = 0;
    await_messages(channel);
    fetch(executor, in<E>(square_.all()), view<float>(&square, 1));
    fetch(executor, in<E, std::uint32_t>(bad_.all()), view<std::uint32_t>(&bad, 1));
    Norm norm;
    int rank = 0;
    for (const float partial :
         everyone_(channel, bad != 0 ? -square : square, Phase::agree, static_cast<std::int64_t>(step))) {
      norm.value += static_cast<double>(std::abs(partial));
      if (std::signbit(partial) && norm.culprit < 0) norm.culprit = rank;
      ++rank;
    }
    norm.value = std::sqrt(norm.value / channel.size());
    return norm;
  }

 private:
  Partials everyone_;
  Range range_;
  buffer<float, typename E::memory> scratch_, square_;
  buffer<std::uint32_t, typename E::memory> bad_;
};

}  // namespace terse::detail
