// SPDX-License-Identifier: Apache-2.0

// A quantizer of one's own in OneBitAdam, beside the library's signs: two bits an element stand closer to it
// than one, for twice the bytes.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "terse/terse.hpp"

/// Two bits an element: the nearest of -3/2 s, -s/2, s/2, 3/2 s, with s the root mean square of a segment.
/// Packing, the residual's bookkeeping, wire sizes and all topologies come from terse::Packed.
struct FourLevels {
  using Statistic = terse::RootMeanSquare;
  static constexpr int bits = 2;
  static constexpr bool stochastic = false;  // takes no random numbers
  static constexpr bool unbiased = false;    // so that it can't be used without error feedback

  TERSE_HD static std::uint32_t code(float value, float scale, std::uint32_t) {
    if (value < 0) return value < -scale ? 0U : 1U;
    return value > scale ? 3U : 2U;
  }
  TERSE_HD static float value(std::uint32_t code, float scale) {
    return scale * (static_cast<float>(code) - 1.5F);
  }
};

namespace {

using Mine = terse::Packed<FourLevels, terse::PerSegment>;

struct Outcome {
  double loss = 0;
  std::uint64_t bytes_per_step = 0;
};

/// 4 ranks minimize sum_i c_i (x_i - 1)^2 / 2, c_i from 1/4 to 4, by gradients with noise of their own.
template <class Compressor>
Outcome train() {
  constexpr int steps = 400, freeze = 40;
  Outcome outcome;
  terse::ThreadGroup(4).run([&](terse::Threads& threads) {
    terse::Metered<terse::Threads> transport(threads.split(0, threads.rank()));
    const terse::Layout layout = terse::Layout::flat(20'000);
    const auto size = static_cast<std::size_t>(layout.size());
    std::vector<float> x(size), g(size);
    const auto curvature = [](std::size_t i) { return std::exp2(static_cast<float>(i % 5) - 2); };

    terse::OneBitAdam<Compressor> recipe{.preconditioner = {.freeze = terse::AtStep{freeze}}};
    terse::Optimizer optimizer{recipe, transport, layout};
    std::uint64_t before = 0;
    for (int step = 1; step <= steps; ++step) {
      const terse::Draw draw =
          terse::Draw::local(1, threads.rank(), static_cast<std::uint64_t>(step), terse::Purpose::user);
      for (std::size_t i = 0; i < size; ++i) {
        const float noise = static_cast<float>(draw.bits(i) >> 40) * 0x1p-23F - 1;  // uniform in [-1, 1)
        g[i] = curvature(i) * (x[i] - 1) + noise;
      }
      optimizer.recipe.learning_rate = 0.02F * static_cast<float>(steps + 1 - step) / steps;
      before = transport.traffic().bytes_sent();
      optimizer.step(x, g);
    }
    if (threads.rank() != 0) return;
    outcome.bytes_per_step = transport.traffic().bytes_sent() - before;
    for (std::size_t i = 0; i < static_cast<std::size_t>(layout.range().elements()); ++i)
      outcome.loss += static_cast<double>(curvature(i) * (x[i] - 1) * (x[i] - 1)) / 2;
  });
  return outcome;
}

}  // namespace

int main() {
  try {
    const Outcome signs = train<terse::Sign>();
    const Outcome mine = train<Mine>();
    std::printf("compressor    final loss   bytes per step\n");
    std::printf("Sign          %10.2f   %14llu\n", signs.loss,
                static_cast<unsigned long long>(signs.bytes_per_step));
    std::printf("FourLevels    %10.2f   %14llu\n", mine.loss,
                static_cast<unsigned long long>(mine.bytes_per_step));
    const double start = 20'000 * (0.25 + 0.5 + 1 + 2 + 4) / 5 / 2;
    if (signs.loss < start / 100 && mine.loss < start / 100) return EXIT_SUCCESS;
    std::fprintf(stderr, "did not converge: the loss was %.2f at the start\n", start);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
