// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "reference/mixing.hpp"
#include "terse/momentum_correction/combine.hpp"
#include "terse/momentum_correction/displacement.hpp"
#include "terse/momentum_correction/doubly_averaged.hpp"
#include "terse/momentum_correction/exact_diffusion.hpp"
#include "terse/momentum_correction/mixed_gradient.hpp"
#include "terse/momentum_correction/quasi_global.hpp"
#include "terse/momentum_correction/tracking.hpp"
#include "terse/optimizer/mixing_functors.hpp"

// The library's own rules in double, all ranks in one thread: where they come to rest, what they equal, and when they
// diverge.

using namespace terse;
using reference::Matrix;

namespace {

using Doubles = std::vector<double>;
using Vectors = std::vector<Doubles>;  // [rank][k]
using Gradient = std::function<Doubles(std::size_t rank, const Doubles& x)>;

/// What a rule sees of one parameter, see MixingRule.
struct Element {
  double parameter, gradient, learning_rate, rate_ratio;
  double* buffers;

  double x() const { return parameter; }
  double held() const { return parameter; }
  double g() const { return gradient; }
  double rate() const { return learning_rate; }
  double ratio() const { return rate_ratio; }
  double& operator[](int k) const { return buffers[k]; }
};

/// Ranks under rule M.
template <class M>
class Ranks {
 public:
  using Rule = typename M::template Rule<double>;
  Vectors x;

  Ranks(Rule rule, Vectors start)
      : x(std::move(start)), rule_(rule), gradients_(x), buffers_(x.size() * x[0].size() * room) {}

  void step(const Matrix& w, double rate, const Gradient& gradient) {
    if (!M::facts.combines_first) look(gradient);
    mix(w, rate, std::make_integer_sequence<int, M::facts.vectors>{});
    if constexpr (M::facts.combines_first) {
      look(gradient);
      each(rate, [&](std::size_t i, std::size_t k, const Element& e) { x[i][k] = rule_.adapt(e); });
    }
    last_rate_ = rate;
  }

 private:
  static constexpr std::size_t room = M::state.size() + 1;  // one at least

  void look(const Gradient& gradient) {
    for (std::size_t i = 0; i < x.size(); ++i) gradients_[i] = gradient(i, x[i]);
  }
  template <class Body>
  void each(double rate, Body body) {
    const double ratio = last_rate_ > 0 ? rate / last_rate_ : 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t k = 0; k < x[i].size(); ++k)
        body(i, k, Element{x[i][k], gradients_[i][k], rate, ratio, &buffers_[(i * x[i].size() + k) * room]});
  }
  /// All vectors leave before any is settled.
  template <int... K>
  void mix(const Matrix& w, double rate, std::integer_sequence<int, K...>) {
    Vectors sent[] = {outgoing<K>(rate)...};
    (update<K>(w, rate, sent[K]), ...);
  }
  template <int K>
  Vectors outgoing(double rate) {
    Vectors z = x;
    each(rate, [&](std::size_t i, std::size_t k, const Element& e) {
      z[i][k] = detail::outgoing(rule_, e, Vector<K>{});
    });
    return z;
  }
  template <int K>
  void update(const Matrix& w, double rate, const Vectors& z) {
    const std::size_t n = x.size();
    each(rate, [&](std::size_t i, std::size_t k, const Element& e) {
      double difference = 0;
      for (std::size_t j = 0; j < n; ++j) difference += w[i * n + j] * (z[j][k] - z[i][k]);
      if constexpr (K > 0)
        rule_.update(Vector<K>{}, e, z[i][k], difference);
      else if constexpr (requires { rule_.update(Vector<0>{}, e, z[i][k], difference); })
        x[i][k] = rule_.update(Vector<0>{}, e, z[i][k], difference);
      else
        x[i][k] = rule_.update(e, z[i][k], difference);
    });
  }

  Rule rule_;
  Vectors gradients_;
  Doubles buffers_;
  double last_rate_ = 0;
};

using Plain = AdaptThenCombine<GradientDirection>;
using Consensus = AdaptWithCombine<GradientDirection>;
using Momentum = AdaptThenCombine<MomentumDirection>;
using ConsensusMomentum = AdaptWithCombine<MomentumDirection>;
using MomentumDiffusion = ExactDiffusion<MomentumDirection>;

/// Where a rule is after `steps` steps.
template <class M>
Vectors rest(typename M::template Rule<double> rule, const Matrix& w, double rate, const Gradient& gradient,
             Vectors start, int steps) {
  Ranks<M> ranks(rule, std::move(start));
  for (int step = 0; step < steps; ++step) ranks.step(w, rate, gradient);
  return ranks.x;
}

double distance(const Vectors& a, const Vectors& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      const double apart = std::abs(a[i][k] - b[i][k]);
      if (!(apart <= most)) most = apart;  // NaN stays
    }
  return most;
}

}  // namespace

TEST_CASE("two ranks come to rest where a calculation by hand puts them") {
  // f_i(x) = (x - c_i)^2 / 2, c = 1 and -1; the optimum of the mean is 0. lambda = 1/2, gamma = 1/10, beta = 9/10. With e =
  // gamma, gamma / (1 - beta) or gamma / (1 - beta lambda): lambda e / (1 - lambda + lambda e) after a combination,
  // e / (1 - lambda + e) after an adaptation.
  const Matrix w{0.75, 0.25, 0.25, 0.75};
  const Gradient gradient = [](std::size_t i, const Doubles& x) { return Doubles{x[0] - (i == 0 ? 1 : -1)}; };
  constexpr double beta = 0.9, gamma = 0.1;
  const auto check = [&](auto rule, auto method, double expected) {
    const Vectors x = rest<decltype(method)>(rule, w, gamma, gradient, {{0.3}, {0.3}}, 4000);
    CAPTURE(x[0][0]);
    CAPTURE(expected);
    CHECK(std::abs(x[0][0] - expected) < 1e-12);
    CHECK(std::abs(x[1][0] + expected) < 1e-12);
  };
  using terse::Displacement, terse::MixedGradient;
  check(Plain::Rule<double>{}, Plain{}, 1.0 / 11);
  check(Consensus::Rule<double>{}, Consensus{}, 1.0 / 6);
  check(CombineThenAdapt::Rule<double>{}, CombineThenAdapt{}, 2.0 / 11);
  check(Momentum::Rule<double>{{beta}}, Momentum{}, 1.0 / 2);
  check(Momentum::Rule<double>{{beta, true}}, Momentum{}, 1.0 / 2);
  check(ConsensusMomentum::Rule<double>{{beta}}, ConsensusMomentum{}, 2.0 / 3);
  check(DoublyAveraged::Rule<double>{{beta}}, DoublyAveraged{}, 2.0 / 13);
  check(MixedGradient::Rule<double>{beta}, MixedGradient{}, 1.0 / 11);
  check(MixedGradient::Rule<double>{beta, true}, MixedGradient{}, 1.0 / 11);
  check(QuasiGlobal::Rule<double>{beta, beta}, QuasiGlobal{}, 1.0 / 11);
  // At rest the model does not move, so that nothing is left of the momentum but Nesterov's look-ahead: (1 + beta) gamma.
  check(QuasiGlobal::Rule<double>{beta, 0.8, true}, QuasiGlobal{}, 19.0 / 119);
  for (const double omega : {0.0, 0.5, 1.0})
    check(Displacement::Rule<double>{beta, omega}, Displacement{}, 1.0 / 6);
  check(ExactDiffusion<GradientDirection>::Rule<double>{}, ExactDiffusion<GradientDirection>{}, 0);
  check(MomentumDiffusion::Rule<double>{{beta}}, MomentumDiffusion{}, 0);
  check(GradientTracker::Rule<double>{}, GradientTracker{}, 0);
  check(MomentumTracker::Rule<double>{beta}, MomentumTracker{}, 0);
}

namespace {

/// f_i(x) = |A_i x - b_i|^2 / 2 with A_i of 50 x 30 normal numbers and b_i = A_i x_i + s_i, where the ranks' own solutions
/// x_i differ by 0.1 and s_i is noise of 0.01: the linear regression of Yuan et al., ICCV 2021, section 7.1.
class Regression {
 public:
  static constexpr std::size_t ranks = 8, rows = 50, columns = 30;
  Doubles optimum;  ///< of the mean

  Regression() {
    std::mt19937_64 engine(2021);
    const auto normal = [&] {
      // Box-Muller: the library's distribution differs between implementations.
      const double u = (static_cast<double>(engine() >> 11) + 1) * 0x1p-53;
      return std::sqrt(-2 * std::log(u)) *
             std::cos(2 * 3.14159265358979 * static_cast<double>(engine() >> 11) * 0x1p-53);
    };
    Doubles common(columns);
    for (double& value : common) value = normal();
    for (std::size_t i = 0; i < ranks; ++i) {
      Doubles own = common, a(rows * columns), hessian(columns * columns), slope(columns);
      for (double& value : own) value += 0.1 * normal();
      for (double& value : a) value = normal();
      for (std::size_t r = 0; r < rows; ++r) {
        double b = 0.01 * normal();
        for (std::size_t c = 0; c < columns; ++c) b += a[r * columns + c] * own[c];
        for (std::size_t c = 0; c < columns; ++c) {
          slope[c] += a[r * columns + c] * b;
          for (std::size_t d = 0; d < columns; ++d)
            hessian[c * columns + d] += a[r * columns + c] * a[r * columns + d];
        }
      }
      hessians_.push_back(hessian);
      slopes_.push_back(slope);
    }
    solve();
  }

  Gradient gradient() const {
    return [this](std::size_t i, const Doubles& x) {
      Doubles g(columns);
      for (std::size_t c = 0; c < columns; ++c) {
        double sum = -slopes_[i][c];
        for (std::size_t d = 0; d < columns; ++d) sum += hessians_[i][c * columns + d] * x[d];
        g[c] = sum;
      }
      return g;
    };
  }
  static Vectors start() { return Vectors(ranks, Doubles(columns)); }

  /// Mean over the ranks of |x_i - x*|^2 / |x*|^2.
  double error(const Vectors& x) const {
    double square = 0, whole = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      whole += optimum[c] * optimum[c];
      for (const Doubles& one : x) square += (one[c] - optimum[c]) * (one[c] - optimum[c]);
    }
    return square / whole / static_cast<double>(x.size());
  }

 private:
  /// Elimination; the sum of the Hessians is positive definite.
  void solve() {
    Doubles h(columns * columns);
    optimum.assign(columns, 0);
    for (std::size_t i = 0; i < ranks; ++i) {
      for (std::size_t k = 0; k < h.size(); ++k) h[k] += hessians_[i][k];
      for (std::size_t c = 0; c < columns; ++c) optimum[c] += slopes_[i][c];
    }
    for (std::size_t p = 0; p < columns; ++p)
      for (std::size_t r = 0; r < columns; ++r) {
        if (r == p) continue;
        const double factor = h[r * columns + p] / h[p * columns + p];
        for (std::size_t c = p; c < columns; ++c) h[r * columns + c] -= factor * h[p * columns + c];
        optimum[r] -= factor * optimum[p];
      }
    for (std::size_t p = 0; p < columns; ++p) optimum[p] /= h[p * columns + p];
  }

  std::vector<Doubles> hessians_, slopes_;
};

constexpr std::size_t eight = Regression::ranks;

struct NamedGraph {
  const char* name;
  Matrix w;
};
std::vector<NamedGraph> symmetric_graphs() {
  return {{"mesh", reference::mesh(2, 4)},
          {"ring", reference::ring(eight)},
          {"symmetric exponential", reference::circulant(eight, {1, 2, 4, 6, 7})}};
}

}  // namespace

TEST_CASE("linear regression: momentum's bias is that of a larger rate, or none") {
  const Regression problem;
  const Gradient gradient = problem.gradient();
  constexpr double gamma = 1e-3, beta = 0.8;
  constexpr int steps = 1500;  // all are at rest, to rounding
  const auto at_rest = [&](auto method, auto rule, const Matrix& w, double rate) {
    return rest<decltype(method)>(rule, w, rate, gradient, Regression::start(), steps);
  };
  for (const NamedGraph& graph : symmetric_graphs()) {
    CAPTURE(graph.name);
    const Matrix& w = graph.w;
    const Vectors plain = at_rest(Plain{}, Plain::Rule<double>{}, w, gamma);
    const Vectors faster = at_rest(Plain{}, Plain::Rule<double>{}, w, gamma / (1 - beta));
    const Vectors momentum = at_rest(Momentum{}, Momentum::Rule<double>{{beta}}, w, gamma);
    const Vectors consensus = at_rest(Consensus{}, Consensus::Rule<double>{}, w, gamma / (1 - beta));
    const Vectors with = at_rest(ConsensusMomentum{}, ConsensusMomentum::Rule<double>{{beta}}, w, gamma);
    const Vectors decentlam = at_rest(MixedGradient{}, MixedGradient::Rule<double>{beta}, w, gamma);
    const Vectors quasi_global = at_rest(QuasiGlobal{}, QuasiGlobal::Rule<double>{beta, beta}, w, gamma);
    CHECK(distance(momentum, faster) < 1e-10);
    CHECK(distance(with, consensus) < 1e-10);
    CHECK(distance(decentlam, plain) < 1e-10);
    CHECK(distance(quasi_global, plain) < 1e-10);
    // They are no rest of everything: the biases differ.
    CHECK(problem.error(plain) > 1e-7);
    const double ratio = problem.error(momentum) / problem.error(decentlam);
    CAPTURE(ratio);
    CHECK(ratio > 4);
    CHECK(ratio < 25);  // 1 / (1 - beta)^2, of small rates

    const Matrix half = reference::lazy(w, eight);
    CHECK(problem.error(at_rest(ExactDiffusion<GradientDirection>{},
                                ExactDiffusion<GradientDirection>::Rule<double>{}, half, gamma)) < 1e-20);
    CHECK(problem.error(at_rest(MomentumDiffusion{}, MomentumDiffusion::Rule<double>{{beta}}, half, gamma)) <
          1e-20);
    CHECK(problem.error(at_rest(GradientTracker{}, GradientTracker::Rule<double>{}, w, gamma)) < 1e-20);
    CHECK(problem.error(at_rest(MomentumTracker{}, MomentumTracker::Rule<double>{beta}, w, gamma)) < 1e-20);
  }
}

TEST_CASE("exact diffusion diverges where an eigenvalue is below -1/3, and lazily it does not") {
  const Regression problem;
  using Diffusion = ExactDiffusion<GradientDirection>;
  const Vectors lost =
      rest<Diffusion>({}, reference::mesh(2, 4), 1e-3, problem.gradient(), Regression::start(), 1500);
  CHECK(!(problem.error(lost) < 1));
}

TEST_CASE("where everybody averages with everybody: parallel momentum SGD, to rounding") {
  const Regression problem;
  const Gradient gradient = problem.gradient();
  constexpr double gamma = 1e-3, beta = 0.8;
  const Matrix w = reference::complete(eight);
  // PmSGD: m = beta m + mean g, x = x - gamma m.
  const auto parallel = [&](double momentum, int steps) {
    Doubles x(Regression::columns), m(x.size());
    for (int step = 0; step < steps; ++step) {
      Doubles mean(x.size());
      for (std::size_t i = 0; i < eight; ++i) {
        const Doubles g = gradient(i, x);
        for (std::size_t c = 0; c < x.size(); ++c) mean[c] += g[c] / static_cast<double>(eight);
      }
      for (std::size_t c = 0; c < x.size(); ++c) {
        m[c] = momentum * m[c] + mean[c];
        x[c] -= gamma * m[c];
      }
    }
    return Vectors(eight, x);
  };
  for (const int steps : {1, 2, 3, 50}) {
    CAPTURE(steps);
    const auto after = [&](auto method, auto rule) {
      return rest<decltype(method)>(rule, w, gamma, gradient, Regression::start(), steps);
    };
    CHECK(distance(after(Momentum{}, Momentum::Rule<double>{{beta}}), parallel(beta, steps)) < 1e-12);
    CHECK(distance(after(DoublyAveraged{}, DoublyAveraged::Rule<double>{{beta}}), parallel(beta, steps)) <
          1e-12);
    CHECK(distance(after(MixedGradient{}, MixedGradient::Rule<double>{beta}), parallel(beta, steps)) < 1e-12);
    CHECK(distance(after(GradientTracker{}, GradientTracker::Rule<double>{}), parallel(0, steps)) < 1e-12);
    CHECK(distance(
              after(ExactDiffusion<GradientDirection>{}, ExactDiffusion<GradientDirection>::Rule<double>{}),
              parallel(0, steps)) < 1e-12);
    CHECK(distance(after(ConsensusMomentum{}, ConsensusMomentum::Rule<double>{{beta}}),
                   parallel(beta, steps)) > 1e-3);
    if (steps > 1)
      CHECK(distance(after(QuasiGlobal{}, QuasiGlobal::Rule<double>{beta, beta}), parallel(beta, steps)) >
            1e-3);
  }
}

namespace {

/// Growth a step of what differs between eight ranks, gradients of 0, over 120 steps.
template <class M>
double growth(typename M::template Rule<double> rule, const std::function<Matrix(std::uint64_t)>& matrix) {
  Vectors start;
  double mean = 0;
  for (std::size_t i = 0; i < eight; ++i) {
    start.push_back({std::sin(1 + 3 * static_cast<double>(i))});
    mean += start[i][0] / static_cast<double>(eight);
  }
  for (Doubles& one : start) one[0] -= mean;
  Ranks<M> ranks(rule, start);
  const auto size = [&] {
    double square = 0;
    for (const Doubles& one : ranks.x) square += one[0] * one[0];
    return std::sqrt(square);
  };
  // The largest of 60 steps each, for what rotates.
  double early = 0, late = 0;
  for (std::uint64_t round = 0; round < 220; ++round) {
    ranks.step(matrix(round), 0.1, [](std::size_t, const Doubles&) { return Doubles{0}; });
    if (round >= 40 && round < 100) early = std::max(early, size());
    if (round >= 160) late = std::max(late, size());
  }
  return std::pow(late / early, 1.0 / 120);
}

auto always(const Matrix& w) {
  return [=](std::uint64_t) { return w; };
}
/// Every `every`-th matrix is that of the exact mean.
auto with_means(const Matrix& w, std::uint64_t every) {
  return [=](std::uint64_t round) { return (round + 1) % every == 0 ? reference::complete(eight) : w; };
}

}  // namespace

TEST_CASE("DecentLaM grows on graphs that change, which laziness cures") {
  const auto hypercube = [](std::uint64_t round) { return reference::one_peer_hypercube(eight, round); };
  const auto lazily = [&](std::uint64_t round) { return reference::lazy(hypercube(round), eight); };
  CHECK(growth<MixedGradient>({0.9}, hypercube) == doctest::Approx(1.052).epsilon(1e-3));
  CHECK(growth<MixedGradient>({0.9}, lazily) == doctest::Approx(0.949).epsilon(1e-3));
}

TEST_CASE("DecentLaM with Nesterov's look-ahead needs eigenvalues above -1 / (1 + 2 beta)") {
  // z^2 - (1 + beta) lambda z + beta lambda has a root below -1 where lambda < -0.357; the mesh has -0.384.
  const Matrix mesh = reference::mesh(2, 4);
  CHECK(growth<MixedGradient>({0.9}, always(mesh)) < 1);
  CHECK(growth<MixedGradient>({0.9, true}, always(mesh)) > 1.02);
  CHECK(growth<MixedGradient>({0.9, true}, always(reference::lazy(mesh, eight))) < 1);
}

TEST_CASE("exact means now and then: what remembers differences between ranks grows") {
  const Matrix ring = reference::ring(eight), half = reference::lazy(ring, eight);
  CHECK(growth<MixedGradient>({0.9}, with_means(ring, 5)) > 1.1);
  CHECK(growth<terse::Displacement>({0.9, 0.5}, with_means(ring, 5)) > 1.05);
  CHECK(growth<ExactDiffusion<GradientDirection>>({}, with_means(half, 5)) > 1.1);
  CHECK(growth<QuasiGlobal>({0.9, 0.9}, with_means(ring, 5)) < 1);
}

TEST_CASE("on a directed ring exact diffusion and quasi-global momentum grow, lazily too") {
  Matrix ring(eight * eight, 0);
  for (std::size_t i = 0; i < eight; ++i) ring[i * eight + i] = ring[i * eight + (i + 1) % eight] = 0.5;
  const Matrix half = reference::lazy(ring, eight);
  const double diffusion = growth<ExactDiffusion<GradientDirection>>({}, always(ring));
  CHECK(diffusion == doctest::Approx(1.409).epsilon(0.01));  // what the polynomials of their pages give
  CHECK(growth<ExactDiffusion<GradientDirection>>({}, always(half)) == doctest::Approx(1.256).epsilon(0.01));
  CHECK(growth<QuasiGlobal>({0.9, 0.9}, always(ring)) == doctest::Approx(1.0061).epsilon(0.002));
  CHECK(growth<QuasiGlobal>({0.9, 0.9}, always(half)) == doctest::Approx(1.0155).epsilon(0.002));
}

TEST_CASE("quasi-global momentum needs eigenvalues of a symmetric matrix above its limit") {
  for (const bool nesterov : {false, true}) {
    const double limit = QuasiGlobal{.nesterov = nesterov}.eigenvalues_above();
    CHECK(limit == doctest::Approx(nesterov ? -0.9214 : -0.9135).epsilon(1e-4));
    const auto on = [&](double eigenvalue) {
      Matrix pairs(eight * eight, 0);
      for (std::size_t i = 0; i < eight; ++i) {
        pairs[i * eight + i] = (1 + eigenvalue) / 2;
        pairs[i * eight + (i ^ 1)] = (1 - eigenvalue) / 2;
      }
      return growth<QuasiGlobal>({0.9, 0.9, nesterov}, always(pairs));
    };
    CHECK(on(limit - 0.02) > 1.001);
    CHECK(on(limit + 0.02) <= 1.0001);
  }
}
