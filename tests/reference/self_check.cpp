// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "reference/gradient_averaging.hpp"
#include "reference/power_sgd.hpp"
#include "reference/sparse_averaging.hpp"

// The oracles against closed forms of their own algorithms.

namespace terse::reference {
namespace {

using Gradients = std::vector<Arena<double>>;

/// Two matrices, a vector of one element, and a bias that is not compressed.
Layout small() {
  Layout layout;
  layout.add({"w", {12, 7}});
  layout.add({"bias", {5}, 1, 1, false});
  layout.add({"one", {1}});
  layout.add({"v", {3, 40}});
  return layout;
}

class Source {
 public:
  explicit Source(Layout layout) : layout_(std::move(layout)) {}

  Arena<double> arena() {
    Arena<double> values(at(layout_.size()));
    for_each_element(layout_, [&](const Segment&, std::size_t k) { values[k] = normal_(engine_); });
    return values;
  }
  Gradients gradients(std::size_t ranks) {
    Gradients all;
    for (std::size_t rank = 0; rank < ranks; ++rank) all.push_back(arena());
    return all;
  }

 private:
  Layout layout_;
  std::mt19937_64 engine_{7};
  std::normal_distribution<double> normal_;
};

double distance(const Arena<double>& a, const Arena<double>& b) {
  double most = 0;
  for (std::size_t k = 0; k < a.size(); ++k) most = std::max(most, std::abs(a[k] - b[k]));
  return most;
}

void add(Arena<double>& sum, double factor, const Arena<double>& values) {
  for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += factor * values[k];
}

/// Runs an oracle and MomentumSgd on the same gradients.
template <class Oracle, class Step>
void same_as_sgd(Oracle oracle, const Layout& layout, std::size_t ranks, MomentumSgd<>::Options options,
                 const Step& step) {
  MomentumSgd<> sgd(layout, static_cast<int>(ranks), options, oracle.parameters);
  Source source(layout);
  for (int t = 0; t < 20; ++t) {
    const Gradients g = source.gradients(ranks);
    step(oracle, g);
    sgd.step(g, 0.1);
    CHECK(distance(oracle.parameters, sgd.parameters) < 1e-11);
  }
}

/// Standard normal Q of `rank` columns for each segment.
std::vector<std::vector<double>> initial_q(const Layout& layout, std::size_t rank) {
  std::mt19937_64 engine(3);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> q;
  for (const Segment& segment : layout.segments()) {
    q.emplace_back(reference::matrix_shape(segment).columns * rank);
    for (double& value : q.back()) value = normal(engine);
  }
  return q;
}

/// Elements of a layout with one segment of 4.
Arena<double> four(double a, double b, double c, double d) {
  Arena<double> values(64);
  values[0] = a, values[1] = b, values[2] = c, values[3] = d;
  return values;
}

}  // namespace

TEST_CASE("the small pieces") {
  CHECK(sgn(0.0) == 1.0);
  CHECK(sgn(-0.0) == 1.0);
  CHECK(sgn(-1e-300) == -1.0);
  CHECK(top_count(0.001, 12) == 1);
  CHECK(top_count(0.25, 12) == 3);
  CHECK(top_count(0.26, 12) == 4);
  CHECK(top_count(1, 12) == 12);
  CHECK(top_count(0.5, 0) == 0);
  const Layout layout = Layout::flat(4);
  CHECK(by_magnitude(layout.segments()[0], four(1, -2, 2, 3)) == std::vector<std::size_t>{3, 1, 2, 0});
  CHECK(scale_of({0, 0, 4}, four(1, -2, 2, 3), false) == 2.0);
  CHECK(scale_of({0, 0, 4}, four(1, -1, 3, 5), true) == 3.0);
}

TEST_CASE("error feedback keeps what it does not send") {
  const Layout layout = small();
  for (const bool two_stage : {false, true})
    for (const bool rms : {false, true})
      for (const std::size_t ranks : {std::size_t{1}, std::size_t{3}}) {
        const int parts = static_cast<int>(ranks);
        std::vector<Range> chunks;
        if (two_stage) chunks = layout.filter(layout.range(), true).cut(parts);
        Source source(layout);
        const Arena<double> start = source.arena();
        ErrorFeedbackSgd::Options options;
        options.rms = rms;
        options.rescale = true;
        ErrorFeedbackSgd oracle(layout, parts, options, start, chunks);

        // With lr_prev / lr the invariant holds at any rate: x - lr (mean e + E) = x_0 - sum lr mean g. At
        // rate 0 nothing enters or leaves it.
        Arena<double> expected = start;
        double last = 0;
        for (int t = 0; t < 30; ++t) {
          const Gradients g = source.gradients(ranks);
          const double rate = t % 7 == 3 ? 0.0 : 0.1 / (1 + t);
          const ErrorFeedbackSgd before = oracle;
          oracle.step(g, rate);
          if (rate == 0) {
            CHECK(oracle.parameters == before.parameters);
            CHECK(oracle.errors == before.errors);
            CHECK(oracle.server_errors == before.server_errors);
            continue;
          }
          last = rate;
          add(expected, -rate, mean_of(g));
          Arena<double> lagging = oracle.parameters;
          add(lagging, -last, mean_of(oracle.errors));
          for (const Arena<double>& error : oracle.server_errors) add(lagging, -last, error);
          CHECK(distance(lagging, expected) < 1e-12);
        }
        CHECK(oracle.kept_rate == last);
        CHECK(oracle.errors[0][192] == doctest::Approx(0).epsilon(1e-12));  // one element is sent as it is
      }
}

TEST_CASE("error feedback at a constant rate needs no rescaling") {
  const Layout layout = small();
  Source source(layout);
  const Arena<double> start = source.arena();
  ErrorFeedbackSgd::Options options;
  options.momentum = 0.9;
  options.nesterov = true;
  options.momentum_before = true;
  options.weight_decay = 0.01;
  ErrorFeedbackSgd plain(layout, 2, options, start);
  options.rescale = true;
  ErrorFeedbackSgd rescaled(layout, 2, options, start);
  for (int t = 0; t < 10; ++t) {
    const Gradients g = source.gradients(2);
    plain.step(g, 0.1);
    rescaled.step(g, 0.1);
    CHECK(plain.parameters == rescaled.parameters);
  }
}

TEST_CASE("Nesterov before compression") {
  const Layout layout = Layout::flat(4);
  ErrorFeedbackSgd::Options options;
  options.momentum = 0.5;
  options.nesterov = true;
  options.momentum_before = true;
  ErrorFeedbackSgd oracle(layout, 1, options, four(0, 0, 0, 0));
  oracle.step(Gradients{four(1, -2, 3, 0)}, 1.0);
  // y = 1.5 g; the scale is 9 / 4.
  CHECK(oracle.parameters == four(-2.25, 2.25, -2.25, -2.25));
  CHECK(oracle.errors[0] == four(-0.75, -0.75, 2.25, -2.25));
  oracle.step(Gradients{four(0, 0, 0, 0)}, 1.0);
  // m = g / 2; y = m / 2 + e = (-0.5, -1.25, 3, -2.25), of scale 7 / 4.
  CHECK(oracle.parameters == four(-0.5, 4, -4, -0.5));
  CHECK(!oracle.close_call);
}

TEST_CASE("a sign within the margin is a close call") {
  const Layout layout = Layout::flat(4);
  ErrorFeedbackSgd oracle(layout, 1, {}, four(0, 0, 0, 0));
  oracle.step(Gradients{four(1, -2, 3, 1e-8)}, 1.0);
  CHECK(oracle.close_call);
  CHECK(oracle.doubted[3] == 1);
  CHECK(oracle.doubted[2] == 0);
}

TEST_CASE("three ranks vote") {
  const Layout layout = Layout::flat(4);
  SignSgd::Options options;
  options.beta = 0.5;
  SignSgd oracle(layout, 3, options, four(0, 0, 0, 0));
  oracle.step(Gradients{four(1, -1, -9, 0), four(1, 1, -1, -1), four(-5, -1, 1, 1)}, 0.25);
  CHECK(oracle.parameters == four(-0.25, 0.25, 0.25, -0.25));
  CHECK(oracle.momentum[0] == four(0.5, -0.5, -4.5, 0));
  CHECK(!oracle.close_call);
  // An unsure sign matters only where the others are divided.
  SignSgd unsure(layout, 3, options, four(0, 0, 0, 0));
  unsure.step(Gradients{four(1e-9, 1e-9, 1, 1), four(1, 1, 1, 1), four(1, -1, 1, 1)}, 0.25);
  CHECK(unsure.doubted[0] == 0);
  CHECK(unsure.doubted[1] == 1);
  // A tie is positive.
  SignSgd two(layout, 2, options, four(0, 0, 0, 0));
  two.step(Gradients{four(1, -1, 1, -1), four(-2, 1, 1, -1)}, 1.0);
  CHECK(two.direction == four(1, 1, 1, -1));
}

TEST_CASE("gradients sent whole make plain SGD") {
  const Layout layout = small();
  const Arena<double> start = Source(layout).arena();
  MomentumSgd<>::Options sgd;
  sgd.weight_decay = 0.01;
  for (const bool nesterov : {false, true}) {
    CAPTURE(nesterov);
    sgd.nesterov = nesterov;
    sgd.momentum = 0.9;
    const Decoder identity = [](std::size_t, index_t, const Arena<double>& values) { return values; };
    const Elements all = [](const Segment& segment) { return segment.count; };

    Ef21Sgd::Options shifted;
    shifted.momentum = 0.9;
    shifted.nesterov = nesterov;
    shifted.weight_decay = 0.01;
    for (const bool dense_start : {false, true})
      for (const double rate : {1.0, 0.25}) {
        shifted.dense_start = dense_start;
        shifted.rate = rate;
        const auto step = [](Ef21Sgd& oracle, const Gradients& g) {
          oracle.step(g, 0.1);
          CHECK(distance(oracle.shift, mean_of(oracle.shifts)) < 1e-12);
        };
        same_as_sgd(Ef21Sgd(layout, 3, shifted, start, identity), layout, 3, sgd, step);
        same_as_sgd(Ef21Sgd(layout, 3, shifted, start, all), layout, 3, sgd, step);
      }

    PowerSgd full(layout, 3, {0.9, nesterov, 0.01}, start, initial_q(layout, 7));
    same_as_sgd(full, layout, 3, sgd, [](auto& oracle, const Gradients& g) { oracle.step(g, 0.1); });
  }
}

TEST_CASE("Deep Gradient Compression with ratio 1 masks all momentum") {
  // u is 0 after each step, so all segments but the uncompressed one take g, or (1 + mu) g with Nesterov's.
  const Layout layout = small();
  Source source(layout);
  for (const bool nesterov : {false, true}) {
    const Arena<double> start = source.arena();
    DeepGradientCompression oracle(layout, 2, {0.5, nesterov, 0}, start);
    MomentumSgd<> sgd(layout, 2, {0.5, 0, nesterov}, start);
    Arena<double> expected = start;
    for (int t = 0; t < 5; ++t) {
      const Gradients g = source.gradients(2);
      oracle.step(g, 0.1, 1.0);
      sgd.step(g, 0.1);
      add(expected, nesterov ? -0.15 : -0.1, mean_of(g));
      for_each_element(layout, [&](const Segment& segment, std::size_t k) {
        const double wanted = segment.compress ? expected[k] : sgd.parameters[k];
        CHECK(oracle.parameters[k] == doctest::Approx(wanted).epsilon(1e-12));
      });
    }
  }
}

TEST_CASE("Deep Gradient Compression sends or keeps") {
  // Without momentum all gradients are sent or in r.
  const Layout layout = small();
  Source source(layout);
  const Arena<double> start = source.arena();
  DeepGradientCompression oracle(layout, 3, {0, false, 0}, start);
  Arena<double> expected = start;
  for (int t = 0; t < 20; ++t) {
    const Gradients g = source.gradients(3);
    oracle.step(g, 1.0, 0.1);
    CHECK(oracle.sent[0].size() == 9 + 1 + 12);
    add(expected, -1, mean_of(g));
    Arena<double> ahead = oracle.parameters;
    add(ahead, -1, mean_of(oracle.residuals));
    CHECK(distance(ahead, expected) < 1e-12);
  }

  for (const bool nesterov : {false, true}) {
    DeepGradientCompression one(Layout::flat(4), 1, {0.5, nesterov, 0}, four(0, 0, 0, 0));
    one.step(Gradients{four(4, -8, 4, 2)}, 1.0, 0.5);
    const double first = nesterov ? 1.5 : 1.0;             // what r gets of a gradient at once
    CHECK(one.sent[0] == std::vector<std::size_t>{1, 0});  // the tie goes to 0, and it is no close call
    CHECK(!one.close_call);
    CHECK(one.parameters == four(-4 * first, 8 * first, 0, 0));
    one.step(Gradients{four(0, 0, 0, 0)}, 1.0, 0.5);
    // 2 and 3 are sent with what their momentum adds; 0 and 1 have lost theirs.
    const double second = nesterov ? 1.75 : 1.5;
    CHECK(one.parameters == four(-4 * first, 8 * first, -4 * second, -2 * second));
    CHECK(one.velocity[0] == four(0, 0, 0, 0));
    CHECK(one.residuals[0] == four(0, 0, 0, 0));
  }
  DeepGradientCompression close(Layout::flat(4), 1, {0.5, false, 0}, four(0, 0, 0, 0));
  close.step(Gradients{four(4, -8, 4.000001, 2)}, 1.0, 0.5);
  CHECK(close.close_call);
  CHECK(close.doubted[0] + close.doubted[2] == 2);
  CHECK(close.doubted[1] + close.doubted[3] == 0);
}

TEST_CASE("EF21 finds constant gradients") {
  const Layout layout = small();
  Source source(layout);
  const Gradients g = source.gradients(2);
  Ef21Sgd oracle(layout, 2, {}, source.arena(),
                 [](const Segment& segment) { return top_count(0.1, segment.count); });
  for (int t = 0; t < 12; ++t) oracle.step(g, 0.1);
  CHECK(distance(oracle.estimate, mean_of(g)) < 1e-12);
}

TEST_CASE("PowerSGD") {
  const Layout layout = small();
  Source source(layout);
  const Arena<double> start = source.arena();

  SUBCASE("reproduces rank 1 with rank 1, and zeroes dependent columns") {
    for (const std::size_t rank : {std::size_t{1}, std::size_t{2}}) {
      Gradients g = source.gradients(2);
      for (const Segment& segment : layout.segments()) {
        if (!segment.compress) continue;
        const MatrixShape shape = reference::matrix_shape(segment);
        const Arena<double> left = source.arena(), right = source.arena();
        for (std::size_t k = 0; k < at(segment.count); ++k)
          for (std::size_t i = 0; i < 2; ++i)  // same left and right factors, so the mean has rank 1
            g[i][at(segment.offset) + k] =
                (1.0 + static_cast<double>(i)) * left[k / shape.columns] * right[64 + k % shape.columns % 5];
      }
      PowerSgd oracle(layout, 2, {}, start, initial_q(layout, rank));
      oracle.step(g, 1.0);
      Arena<double> expected = start;
      add(expected, -1, mean_of(g));
      CHECK(distance(oracle.parameters, expected) < 1e-12);
      for (const Arena<double>& error : oracle.errors)
        CHECK(distance(error, Arena<double>(error.size())) < 1e-12);
      CHECK(!oracle.close_call);
    }
  }

  SUBCASE("keeps what it does not send") {
    PowerSgd oracle(layout, 3, {}, start, initial_q(layout, 2));
    Arena<double> expected = start;
    for (int t = 0; t < 20; ++t) {
      const Gradients g = source.gradients(3);
      oracle.step(g, 1.0);
      add(expected, -1, mean_of(g));
      Arena<double> ahead = oracle.parameters;
      add(ahead, -1, mean_of(oracle.errors));
      CHECK(distance(ahead, expected) < 1e-11);
      // P is orthonormal and each error orthogonal to it.
      const MatrixShape shape = reference::matrix_shape(layout.segments()[0]);
      for (std::size_t j = 0; j < 2; ++j)
        for (std::size_t b = 0; b < shape.columns; ++b) {
          double along = 0;
          for (std::size_t a = 0; a < shape.rows; ++a)
            along += oracle.p[0][a * 2 + j] * oracle.errors[1][a * shape.columns + b];
          CHECK(std::abs(along) < 1e-11);
        }
    }
  }

  SUBCASE("finds the leading direction by warm start") {
    // With the error set back each step is a power iteration, here on diag(4, 2): its error falls by 4.
    PowerSgd oracle(layout, 1, {}, start, initial_q(layout, 1));
    Gradients g(1, Arena<double>(start.size()));
    g[0][0] = 4;
    g[0][8] = 2;
    for (int t = 0; t < 30; ++t) {
      std::fill(oracle.errors[0].begin(), oracle.errors[0].end(), 0.0);
      oracle.step(g, 0.0);
    }
    Arena<double> expected(start.size());
    expected[8] = 2;
    CHECK(distance(oracle.errors[0], expected) < 1e-6);
  }

  SUBCASE("loses columns to a zero gradient unless they are kept") {
    for (const bool keep : {false, true}) {
      PowerSgd::Options options;
      options.keep_lost_columns = keep;
      PowerSgd oracle(layout, 2, options, start, initial_q(layout, 1));
      oracle.step(Gradients(2, Arena<double>(start.size())), 1.0);
      CHECK(oracle.parameters == start);
      CHECK((oracle.q == initial_q(layout, 1)) == keep);
    }
  }
}

}  // namespace terse::reference
