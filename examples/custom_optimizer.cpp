// SPDX-License-Identifier: Apache-2.0

// An optimizer of one's own: a preconditioner and a momentum correction that the library hasn't, put together under a name,
// and trained over exact means, over 8-bit ones and over the largest elements, beside Adam.

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "terse/laws/rule.hpp"
#include "terse/terse.hpp"

/// Yogi's variance: v = v - (1 - beta2) sign(v - mean^2) mean^2, which falls more slowly than Adam's. Source: Zaheer et al.,
/// "Adaptive methods for nonconvex optimization", NeurIPS 2018, algorithm 2.
struct YogiVariance {
  static constexpr terse::PreconditionerFacts facts{};
  static constexpr std::array<const char*, 1> state{"variance"};
  float beta2 = 0.999F, epsilon = 1e-3F;
  constexpr std::array<terse::HyperParameter, 2> hyper_parameters() const {
    return {{{"beta2", beta2, terse::allowed::below_one}, {"epsilon", epsilon, terse::allowed::above_zero}}};
  }

  template <class Real>
  struct Rule {
    Real beta, epsilon;  // the hyper-parameters, in their order
    template <class Element>
    TERSE_HD Real step(const Element& e, Real mean, Real direction) const {
      const Real square = mean * mean, v = e[0];
      e[0] = v + (v < square ? 1 - beta : beta - 1) * square;
      return direction / (std::sqrt(e[0]) + epsilon);
    }
  };
};

/// Quasi-hyperbolic momentum: m = beta1 m + (1 - beta1) mean, direction (1 - nu) mean + nu m. Source: Ma and Yarats,
/// "Quasi-hyperbolic momentum and Adam for deep learning", ICLR 2019.
struct QuasiHyperbolic {
  static constexpr terse::CorrectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"momentum"};
  float beta1 = 0.99F, nu = 0.7F;
  constexpr std::array<terse::HyperParameter, 2> hyper_parameters() const {
    return {{{"beta1", beta1, terse::allowed::below_one}, {"nu", nu, terse::allowed::up_to_one}}};
  }

  template <class Real>
  struct Rule {
    Real beta, nu;
    template <class Element>
    TERSE_HD Real direction(const Element& e, Real mean) const {
      e[0] = beta * e[0] + (1 - beta) * mean;
      return (1 - nu) * mean + nu * e[0];
    }
  };
};

/// Sends an average of this rank's own gradients in the place of the last one: of noise that would be sent, half is gone.
struct SmoothedMessage {
  static constexpr terse::CorrectionFacts facts{};
  static constexpr std::array<const char*, 1> state{"smoothed"};
  float beta1 = 0.5F;
  constexpr std::array<terse::HyperParameter, 1> hyper_parameters() const {
    return {{{"beta1", beta1, terse::allowed::below_one}}};
  }

  template <class Real>
  struct Rule {
    Real beta;
    template <class Element>
    TERSE_HD Real message(const Element& e) const {
      const Real u = beta * e[0] + (1 - beta) * e.g();
      e[0] = terse::keep_if(terse::is_finite(u), u, e[0]);
      return u;
    }
    template <class Element>
    TERSE_HD Real direction(const Element&, Real mean) const {
      return mean;
    }
  };
};

/// The first two under a name, with hyper-parameters of its own. QhYogi<> sends exact gradients, QhYogi<TopK<>> the largest ones.
template <class C, class F, class T>
struct QhYogiOf {
  float learning_rate = 1e-2F, weight_decay = 0;
  float beta1 = 0.99F, beta2 = 0.999F, nu = 0.7F, epsilon = 1e-3F;
  std::uint64_t warmup_steps = 0;
  C compressor{};
  F error_feedback{};
  T topology{};

  auto composition() const {
    return terse::averaging_of(*this, QuasiHyperbolic{beta1, nu}, YogiVariance{beta2, epsilon});
  }
};
template <class... Ps>
using QhYogi = terse::Sorted<QhYogiOf, terse::TakesMeans, terse::Policies<>, Ps...>;

namespace {

/// 4 ranks minimize sum_i c_i (x_i - 1)^2 / 2, c_i from 1/4 to 4, by gradients with noise of their own.
template <class Recipe>
double train(const Recipe& recipe) {
  constexpr int steps = 400;
  double loss = 0;
  terse::ThreadGroup(4).run([&](terse::Threads& transport) {
    const terse::Layout layout = terse::Layout::flat(20'000);
    const auto size = static_cast<std::size_t>(layout.size());
    std::vector<float> x(size), g(size);
    const auto curvature = [](std::size_t i) { return std::exp2(static_cast<float>(i % 5) - 2); };

    terse::Optimizer optimizer{recipe, transport, layout};
    for (int step = 1; step <= steps; ++step) {
      const terse::Draw draw =
          terse::Draw::local(1, transport.rank(), static_cast<std::uint64_t>(step), terse::Purpose::user);
      for (std::size_t i = 0; i < size; ++i) {
        const float noise = static_cast<float>(draw.bits(i) >> 40) * 0x1p-23F - 1;  // uniform in [-1, 1)
        g[i] = curvature(i) * (x[i] - 1) + noise;
      }
      optimizer.learning_rate(recipe.learning_rate * static_cast<float>(steps + 1 - step) / steps);
      optimizer.step(x, g);
    }
    if (transport.rank() != 0) return;
    for (std::size_t i = 0; i < static_cast<std::size_t>(layout.range().elements()); ++i)
      loss += static_cast<double>(curvature(i) * (x[i] - 1) * (x[i] - 1)) / 2;
  });
  return loss;
}

}  // namespace

int main() {
  try {
    const terse::laws::Report report = terse::laws::check_rules(QuasiHyperbolic{}, YogiVariance{});
    std::fputs(report.text().c_str(), stdout);
    const terse::laws::Report smoothed = terse::laws::check_momentum_correction<SmoothedMessage>();
    std::fputs(smoothed.text().c_str(), stdout);

    using terse::TopK;
    const double losses[] = {
        train(terse::Adam<>{.learning_rate = 0.02F}), train(QhYogi<>{.learning_rate = 0.02F}),
        train(QhYogi<terse::Uniform<8>>{.learning_rate = 0.02F}),
        train(QhYogi<TopK<>, terse::AllGather>{.learning_rate = 0.02F,
                                               .compressor = {.selection = {.ratio = 0.05}}}),
        train(terse::Averaging<SmoothedMessage, terse::AdamVariance, terse::Uniform<8>>{.learning_rate =
                                                                                            0.02F})};
    std::printf("\noptimizer         final loss\n");
    std::size_t k = 0;
    for (const char* name : {"Adam", "QhYogi", "QhYogi, 8 bits", "QhYogi, top 5 %", "smoothed, 8 bits"})
      std::printf("%-16s  %10.2f\n", name, losses[k++]);
    const double start = 20'000 * (0.25 + 0.5 + 1 + 2 + 4) / 5 / 2;
    bool converged = report && smoothed;
    for (const double loss : losses) converged = converged && loss < start / 100;
    if (converged) return EXIT_SUCCESS;
    std::fprintf(stderr, "a law is broken, or a run did not converge: the loss was %.2f at the start\n",
                 start);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  return EXIT_FAILURE;
}
