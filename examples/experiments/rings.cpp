// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "all.hpp"
#include "terse/compressor/min_max.hpp"
#include "terse/error_feedback/none.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/topology/ring.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/thread.hpp"

namespace experiments {
namespace {

/// To the integer towards 0, as a conversion to an integer does. For numbers of 0 to 255.
struct Truncating {
  static constexpr bool stochastic = false;
  TERSE_HD static constexpr std::int32_t round(float t, std::uint32_t) {
    return static_cast<std::int32_t>(t);
  }
};

/// How far means of normal numbers are off in the same direction: the mean error of all elements and rounds.
template <class Rounding>
Figures bias_of(int ranks, std::uint64_t seed) {
  using Recipe =
      terse::Averaging<terse::MinMax<8, Rounding>, terse::Unchecked<terse::NoErrorFeedback>, terse::Ring>;
  constexpr terse::index_t n = 16384;
  constexpr std::uint64_t rounds = 8;
  std::vector<std::vector<float>> messages(static_cast<std::size_t>(ranks), std::vector<float>(n));
  double sum = 0, squares = 0, power = 0;
  terse::ThreadGroup(ranks).run([&](terse::Threads& threads) {
    terse::Optimizer optimizer{Recipe{.learning_rate = 1}, threads, terse::Layout::flat(n)};
    std::vector<float> x(n);
    std::vector<float>& g = messages[static_cast<std::size_t>(threads.rank())];
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const terse::Draw draw = terse::Draw::local(seed, threads.rank(), round, terse::Purpose::user);
      for (terse::index_t i = 0; i < n; i += 2) {
        const auto uniform = [&](terse::index_t k) {
          return (static_cast<double>(draw.bits(static_cast<std::uint64_t>(k)) >> 11) + 0.5) * 0x1p-53;
        };
        const double length = std::sqrt(-2 * std::log(uniform(i))),
                     angle = 6.283185307179586 * uniform(i + 1);
        g[static_cast<std::size_t>(i)] = static_cast<float>(length * std::cos(angle));
        g[static_cast<std::size_t>(i + 1)] = static_cast<float>(length * std::sin(angle));
      }
      std::fill(x.begin(), x.end(), 0.0F);
      // All have drawn before, and nobody draws anew until rank 0 has looked.
      optimizer.step(x, g);
      if (threads.rank() == 0)
        for (std::size_t i = 0; i < x.size(); ++i) {
          double mean = 0;
          for (const std::vector<float>& message : messages) mean += static_cast<double>(message[i]);
          mean /= ranks;
          const double error = -static_cast<double>(x[i]) - mean;
          sum += error;
          squares += error * error;
          power += mean * mean;
        }
      terse::barrier(threads);
    }
  });
  const double count = static_cast<double>(n) * rounds, root = std::sqrt(power / count);
  Figures figures;
  figures.bias = sum / count / root;
  figures.noise = std::sqrt(squares / count / count) / root;
  return figures;
}

}  // namespace

Experiment rings() {
  Experiment experiment{
      "rings", {{"bias / RMS of the mean", 5, &Figures::bias}, {"its standard error", 5, &Figures::noise}}};
  for (const int ranks : {2, 8, 32}) {
    const std::string of = std::to_string(ranks) + " ranks, ";
    experiment.rows.push_back({of + "nearest", [ranks](const Task&, std::uint64_t seed) {
                                 return bias_of<terse::Nearest>(ranks, seed);
                               }});
    experiment.rows.push_back({of + "truncating", [ranks](const Task&, std::uint64_t seed) {
                                 return bias_of<Truncating>(ranks, seed);
                               }});
  }
  return experiment;
}

}  // namespace experiments
