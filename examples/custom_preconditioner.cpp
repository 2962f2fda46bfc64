// SPDX-License-Identifier: Apache-2.0

// The smallest preconditioner of one's own: a mean square over about ten steps, and 1 for an epsilon. Its laws, and a
// training with one byte an element.

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "terse/laws/rule.hpp"
#include "terse/terse.hpp"

struct RecentSquares {
  static constexpr terse::PreconditionerFacts facts{};
  static constexpr std::array<const char*, 1> state{"square"};
  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real step(const Element& e, Real mean, Real direction) const {
      return direction / (std::sqrt(e[0] += (mean * mean - e[0]) / 10) + 1);
    }
  };
};

int main() {
  try {
    const terse::laws::Report report = terse::laws::check_preconditioner<RecentSquares>();
    std::fputs(report.text().c_str(), stdout);

    double farthest = 0;
    terse::ThreadGroup(3).run([&](terse::Threads& transport) {
      const terse::Layout layout = terse::Layout::flat(10'000);
      std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
      using Method = terse::Averaging<RecentSquares, terse::HeavyBall, terse::Uniform<8>>;
      terse::Optimizer optimizer{Method{.learning_rate = 0.5F}, transport, layout};
      for (int step = 1; step <= 300; ++step) {
        for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - static_cast<float>(transport.rank());
        optimizer.step(x, g);
      }
      if (transport.rank() != 0) return;
      for (std::size_t i = 0; i < 10'000; ++i)
        farthest = std::fmax(farthest, std::abs(static_cast<double>(x[i]) - 1));
    });
    std::printf("\nAll parameters are within %.4f of the optimum, 1\n", farthest);
    return report && farthest < 0.01 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
