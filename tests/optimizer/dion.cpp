// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/dion.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "optimizer/support.hpp"
#include "reference/muon.hpp"
#include "terse/exchange/selected_rounds.hpp"
#include "terse/optimizer/adam.hpp"

// Dion against an oracle in double, from its paper's algorithm 1, and what follows from its formulas. What a device has of it is
// in device_low_rank.inc.

using namespace terse;
using namespace terse::test;

namespace {

using reference::Matrix;

constexpr int R = 3;
constexpr float momentum = 0.9F, decay = 0.1F, rate = 0.02F;

bool hidden_one(const Segment& segment) { return segment.hidden; }

Layout network() {
  Layout layout;
  layout.add({"embedding", {11, 6}}).add({.name = "wide", .shape = {17, 40}, .hidden = true});
  layout.add({"bias", {17}, 0.5F, 0, false});
  layout.add({.name = "tall", .shape = {70, 9}, .learning_rate_scale = 0.5F, .hidden = true});
  layout.add({.name = "kernels", .shape = {12, 3, 4}, .weight_decay = 0, .hidden = true})
      .add({"head", {5, 12}});
  return layout;
}
Layout one_matrix(index_t rows, index_t columns) {
  Layout layout;
  layout.add({.name = "m", .shape = {rows, columns}, .hidden = true});
  return layout;
}

Matrix matrix_at(const Segment& segment, const std::vector<double>& arena) {
  const MatrixShape shape = terse::detail::matrix_shape(segment);
  Matrix m(at(shape.rows), at(shape.columns));
  std::copy_n(arena.begin() + segment.offset, m.elements.size(), m.elements.begin());
  return m;
}
std::vector<double> doubles(const Floats& x) { return {x.begin(), x.end()}; }

/// Modified Gram-Schmidt; a column that depends on those before it becomes 0.
Matrix orthonormalized(Matrix p) {
  for (std::size_t r = 0; r < p.columns; ++r) {
    const auto dot = [&](std::size_t a, std::size_t b) {
      double sum = 0;
      for (std::size_t i = 0; i < p.rows; ++i) sum += p(i, a) * p(i, b);
      return sum;
    };
    const double before = std::sqrt(dot(r, r));
    for (std::size_t other = 0; other < r; ++other) {
      const double along = dot(other, r);
      for (std::size_t i = 0; i < p.rows; ++i) p(i, r) -= along * p(i, other);
    }
    const double norm = std::sqrt(dot(r, r));
    for (std::size_t i = 0; i < p.rows; ++i) p(i, r) = norm > 1e-6 * before ? p(i, r) / norm : 0;
  }
  return p;
}

/// The hidden matrices of all ranks, by the paper's lines. `global`: its own convention, by which each rank takes the mean P R^T out of
/// its momentum.
struct Oracle {
  const Layout& layout;
  bool global = false;
  std::vector<double> parameters{};
  std::vector<std::vector<double>> momenta{};  // of each rank
  std::vector<Matrix> q{};

  Oracle(const Layout& layout_, int ranks, bool global_)
      : layout(layout_),
        global(global_),
        parameters(doubles(start(layout_))),
        momenta(at(ranks), std::vector<double>(at(layout_.size()))) {
    // The library's first Q, column after column, each from a multiple of 64 on.
    const Draw draw = Draw::shared(0, 0, Purpose::initialization);
    index_t place = 0;
    for (const Segment& segment : layout.segments()) {
      if (!segment.hidden) continue;
      const index_t columns = terse::detail::matrix_shape(segment).columns;
      Matrix& own = q.emplace_back(at(columns), at(R));
      for (int r = 0; r < R; ++r, place += aligned(columns))
        for (index_t c = 0; c < columns; ++c)
          own(at(c), at(r)) = static_cast<double>(terse::detail::drawn(draw, place + c));
    }
  }

  void step(const std::vector<Floats>& gradients) {
    std::size_t number = 0;
    for (const Segment& segment : layout.segments()) {
      if (!segment.hidden) continue;
      const std::size_t ranks = gradients.size();
      std::vector<Matrix> b;
      Matrix& last = q[number++];
      for (std::size_t rank = 0; rank < ranks; ++rank)
        b.push_back(matrix_at(segment, momenta[rank]) + matrix_at(segment, doubles(gradients[rank])));
      const double share = 1.0 / static_cast<double>(ranks);
      Matrix p(b[0].rows, at(R)), r(b[0].columns, at(R));
      for (const Matrix& own : b) p = p + share * (own * last);
      p = orthonormalized(p);
      for (const Matrix& own : b) r = r + share * (own.transposed() * p);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const Matrix taken = p * (global ? r : b[rank].transposed() * p).transposed();
        const Matrix kept = b[rank] + -(1 - static_cast<double>(momentum)) * taken;
        std::copy(kept.elements.begin(), kept.elements.end(), momenta[rank].begin() + segment.offset);
      }
      for (std::size_t c = 0; c < r.columns; ++c) {
        double square = 0;
        for (std::size_t i = 0; i < r.rows; ++i) square += r(i, c) * r(i, c);
        for (std::size_t i = 0; i < r.rows; ++i) r(i, c) /= std::sqrt(square) + 1e-8;
      }
      last = r;
      const Matrix direction = p * r.transposed();
      const double own = static_cast<double>(rate) * static_cast<double>(segment.learning_rate_scale),
                   lost = static_cast<double>(decay) * static_cast<double>(segment.weight_decay),
                   scale = std::sqrt(static_cast<double>(direction.rows) /
                                     static_cast<double>(direction.columns));
      for (std::size_t k = 0; k < direction.elements.size(); ++k) {
        double& x = parameters[at(segment.offset) + k];
        x = (1 - own * lost) * x - own * scale * direction.elements[k];
      }
    }
  }
};

/// With this gradient in all steps: what is left of the momentum, and P Q^T of each step.
struct Steps {
  std::vector<Matrix> directions, momenta;
};
Steps steps_of(const Layout& layout, const Floats& g, std::uint64_t steps, float mu) {
  Steps all;
  const Segment& segment = layout.segments()[0];
  const MatrixShape shape = terse::detail::matrix_shape(segment);
  const double scale = std::sqrt(static_cast<double>(shape.rows) / static_cast<double>(shape.columns));
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Dion<R>{.learning_rate = 1, .momentum = mu}, transport, layout};
    for (std::uint64_t step = 1; step <= steps; ++step) {
      Floats x(at(layout.size()));
      optimizer.step(x, g);
      all.directions.push_back(-1 / scale * matrix_at(segment, doubles(x)));
      Seen seen;
      optimizer.walk(seen);
      all.momenta.push_back(matrix_at(segment, spread_out(layout, seen, "error")));
    }
  });
  return all;
}
double distance(const Matrix& a, const Matrix& b) { return (a + -1.0 * b).norm(); }

/// Of rank `values.size()`, with these singular values.
Matrix with_values(const std::vector<double>& values, index_t rows, index_t columns) {
  const auto factor = [&](index_t count, std::uint64_t seed) {
    Matrix drawn(at(count), values.size());
    for (std::size_t k = 0; k < drawn.elements.size(); ++k)
      drawn.elements[k] = static_cast<double>(noise(seed, 0, 0, static_cast<index_t>(k)));
    return orthonormalized(drawn);
  };
  Matrix u = factor(rows, 8);
  for (std::size_t i = 0; i < u.rows; ++i)
    for (std::size_t k = 0; k < values.size(); ++k) u(i, k) *= values[k];
  return u * factor(columns, 9).transposed();
}
Floats arena_of(const Layout& layout, const Matrix& m) {
  Floats x(at(layout.size()));
  std::transform(m.elements.begin(), m.elements.end(), x.begin(),
                 [](double v) { return static_cast<float>(v); });
  return x;
}

}  // namespace

TEST_CASE("Dion is its paper's, and Adam on what is not hidden") {
  const Layout layout = network();
  constexpr std::uint64_t steps = 12;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const Dion<R> recipe{.learning_rate = rate, .weight_decay = decay, .momentum = momentum};
    const History ours = run(recipe, layout, ranks, steps, 3, {}, Unchanged{});
    const History adam =
        run(Adam<>{.learning_rate = rate, .weight_decay = decay}, layout, ranks, steps, 3, {}, Unchanged{});
    Oracle oracle(layout, ranks, false), papers(layout, ranks, true);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      CAPTURE(step);
      std::vector<Floats> g;
      for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, 3));
      oracle.step(g);
      papers.step(g);
      const std::vector<Snapshot>& now = ours[step - 1];
      for (std::size_t rank = 0; rank < now.size(); ++rank) {
        REQUIRE(now[rank].parameters == now[0].parameters);
        REQUIRE(relative_error(layout, spread_out(layout, now[rank].state, "error"), oracle.momenta[rank],
                               hidden_one) < 2e-5);
      }
      REQUIRE(relative_error(layout, now[0].parameters, oracle.parameters, hidden_one) < 1e-5);
      // Which rank's part of a momentum is taken out of it is no step's affair.
      REQUIRE(relative_error(layout, oracle.parameters, papers.parameters, hidden_one) < 1e-9);
      for (const Segment& segment : layout.segments())
        for (index_t i = segment.offset; !segment.hidden && i < segment.offset + segment.count; ++i)
          REQUIRE(now[0].parameters[at(i)] ==
                  doctest::Approx(adam[step - 1][0].parameters[at(i)]).epsilon(1e-6));
    }
  }
}

TEST_CASE(
    "the directions of what has three singular values become its polar factor, and all of it stays as "
    "momentum") {
  for (const auto& [rows, columns] : std::vector<std::pair<index_t, index_t>>{{30, 12}, {12, 30}}) {
    const Layout layout = one_matrix(rows, columns);
    const Matrix g = with_values({4, 2, 1}, rows, columns);
    // Momentum 0 leaves nothing, so that each step sees g alone.
    const Steps steps = steps_of(layout, arena_of(layout, g), 30, 0);
    CHECK(distance(steps.directions.front(), steps.directions.back()) > 1e-2);
    CHECK(steps.directions.back().norm() == doctest::Approx(std::sqrt(double{R})).epsilon(1e-5));
    CHECK(distance(steps.directions.back(), with_values({1, 1, 1}, rows, columns)) < 1e-5);
    for (const Matrix& left : steps.momenta) CHECK(left.norm() < 1e-5);
    double kept = 0;
    for (const Matrix& left : steps_of(layout, arena_of(layout, g), 6, momentum).momenta) {
      kept = static_cast<double>(momentum) * (kept + 1);
      CHECK(distance(left, kept * g) < 1e-5 * left.norm());
    }
  }
}

TEST_CASE("steps are as long as factors have columns, and no longer where there are fewer directions") {
  const Layout layout = one_matrix(20, 33);
  for (const Matrix& step : steps_of(layout, gradient(layout, 0, 1, 1), 5, momentum).directions)
    CHECK(step.norm() == doctest::Approx(std::sqrt(double{R})).epsilon(1e-5));
  const Matrix one = with_values({3}, 20, 33);
  for (const Matrix& step : steps_of(layout, arena_of(layout, one), 5, momentum).directions)
    CHECK(distance(step, 1 / 3.0 * one) < 1e-5);
  const Steps none = steps_of(layout, Floats(at(layout.size())), 3, momentum);
  for (const Matrix& step : none.directions) CHECK(step.norm() == 0);
  CHECK(none.momenta.back().norm() == 0);
}

namespace {

/// The last branch is for what is hidden.
using Mixed = Select<Where<Named<"e*">, TopK<>, Residual>, Where<IsMatrix, DionDirection<R>>>;

template <class Recipe = Dion<R>>
std::string made(const Layout& layout) {
  std::string said;
  ThreadGroup(1).run([&](Threads& transport) {
    try {
      Optimizer optimizer{Recipe{}, transport, layout};
    } catch (const usage_error& error) {
      said = error.what();
    }
  });
  return said;
}

}  // namespace

TEST_CASE("as a branch of Select it has the bits of hidden matrices, and other branches theirs") {
  const Layout layout = network();
  Layout alone;  // the same, where chunks are cut of the embedding
  for (Segment segment : layout.segments()) {
    segment.compress = segment.name == "embedding";
    alone.add(segment);
  }
  const History ours = run(Dion<R, Mixed>{.weight_decay = decay}, layout, 3, 6, 3, {}, Unchanged{}),
                dion = run(Dion<R>{.weight_decay = decay}, layout, 3, 6, 3, {}, Unchanged{}),
                adam = run(Adam<TopK<>, Residual>{.learning_rate = 0.01F, .weight_decay = decay}, alone, 3, 6,
                           3, {}, Unchanged{});
  for (const Segment& segment : layout.segments()) {
    CAPTURE(segment.name);
    const History& theirs = segment.name == "embedding" ? adam : dion;
    for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k)
      REQUIRE(ours.back()[1].parameters[k] == theirs.back()[1].parameters[k]);
  }
  CHECK(made<Dion<R, Mixed>>(layout).empty());
  Layout wrong = network();
  wrong.add({.name = "extra", .shape = {20, 33}, .hidden = true});
  CHECK(made<Dion<R, Mixed>>(wrong).find(
            "hidden segment 'extra' of 20 x 33 would travel with no direction") != std::string::npos);
  CHECK(made<Dion<R, Mixed>>(one_matrix(4, 12)).find("hidden segment 'm' of 4 x 12") != std::string::npos);
  CHECK(made<Dion<R, Mixed>>(Layout::flat(50)).find("marked as hidden") != std::string::npos);
}

TEST_CASE("what has no direction is refused in words") {
  CHECK(made(network()).empty());
  CHECK(made(one_matrix(4, 12))
            .find("hidden segment 'm' of 4 x 12 would travel as it is, with no direction of its own: factors "
                  "of 3 columns") != std::string::npos);
  Layout layout = one_matrix(20, 33);
  layout.add({.name = "other", .shape = {20, 33}, .compress = false, .hidden = true});
  CHECK(made(layout).find("let it be compressed") != std::string::npos);
  CHECK(made(Layout::flat(50)).find("marked as hidden") != std::string::npos);
}
