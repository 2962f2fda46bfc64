// SPDX-License-Identifier: Apache-2.0

// A custom mixing rule: EXTRA. Eight ranks with different targets send to two neighbours each, and every rank converges to the
// mean of all targets, which decentralized SGD with a constant rate does not reach.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "terse/graph/graphs.hpp"
#include "terse/laws/mixing_rule.hpp"
#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/optimizer/parameter_mixing.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/thread.hpp"

/// x_i = sum_j W_ij x_j - rate g_i + q_i; q_i = q_i + sum_j W_ij (x_j - x_i) / 2, of the old x. Source: Shi, Ling, Wu and Yin, SIAM
/// J. Optim. 25, 2015, with (I + W) / 2 for the second matrix.
struct Extra {
  // x is known before the gradient is; the theory is for such graphs.
  static constexpr terse::MixingFacts facts{.before_gradient = true, .needs_fixed_symmetric = true};
  static constexpr std::array<const char*, 1> state{"correction"};

  template <class Real>
  struct Rule {
    template <class Element>
    TERSE_HD Real outgoing(const Element& e) const {
      return e.x();
    }
    template <class Element>
    TERSE_HD Real update(const Element& e, Real own, Real difference) const {
      const Real x = (own + difference) + (e[0] - e.rate() * e.g());
      e[0] += difference / 2;
      return x;
    }
  };
};

template <class... Ps>
using ExtraSgd = terse::MixingFrom<terse::TakesMixing, terse::Policies<Extra>, Ps...>;

namespace {

/// How far the farthest rank ends from the mean of the targets 0 to 7.
template <class Recipe>
double train(const Recipe& recipe) {
  double farthest = 0;
  terse::ThreadGroup(8).run([&](terse::Threads& transport) {
    const terse::Layout layout = terse::Layout::flat(1000);
    std::vector<float> x(static_cast<std::size_t>(layout.size())), g(x.size());
    terse::Optimizer optimizer{recipe, transport, layout};
    for (int step = 1; step <= 1000; ++step) {
      optimizer.begin(
          x);  // with rules whose message needs no gradient, it leaves now; with others nothing happens
      for (std::size_t i = 0; i < x.size(); ++i) g[i] = x[i] - static_cast<float>(transport.rank());
      optimizer.step(x, g);
    }
    const std::vector<double> ends = terse::all_gather(transport, std::abs(double{x[0]} - 3.5));
    if (transport.rank() == 0) farthest = *std::max_element(ends.begin(), ends.end());
  });
  return farthest;
}

}  // namespace

int main() {
  try {
    const terse::laws::Report report = terse::laws::check_mixing_rule<Extra>();
    std::fputs(report.text().c_str(), stdout);

    using Graph = terse::Mixing<terse::graph::Ring>;
    const double without = train(terse::AwcDSgd<Graph>{.learning_rate = 0.05F});
    const double with = train(ExtraSgd<Graph>{.learning_rate = 0.05F});
    std::printf("the farthest rank ends %.4f from the mean of all targets, with EXTRA %.6f\n", without, with);
    return report && without > 0.1 && with < 1e-3 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
