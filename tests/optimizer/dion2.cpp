// SPDX-License-Identifier: Apache-2.0
#include "terse/optimizer/dion2.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "optimizer/support.hpp"
#include "reference/muon.hpp"
#include "terse/compressor/top_k.hpp"
#include "terse/laws/rule.hpp"
#include "terse/optimizer/muon.hpp"

// Dion2 against an oracle in double, from its paper's lines, and what follows from them. What a device has of it is in
// device_muon.inc.

using namespace terse;
using namespace terse::test;

namespace {

using reference::Matrix;

constexpr float momentum = 0.9F, decay = 0.1F, rate = 0.02F;

Layout network() {
  Layout layout;
  layout.add({"embedding", {11, 6}}).add({.name = "wide", .shape = {17, 40}, .hidden = true});
  layout.add({"bias", {17}, 0.5F, 0, false});
  layout.add({.name = "tall", .shape = {70, 9}, .learning_rate_scale = 0.5F, .hidden = true});
  layout.add({.name = "kernels", .shape = {12, 3, 4}, .weight_decay = 0, .hidden = true});
  layout.add({.name = "row", .shape = {1, 30}, .hidden = true}).add({"head", {5, 12}});
  return layout;
}
Layout one_matrix(index_t rows, index_t columns) {
  Layout layout;
  layout.add({.name = "m", .shape = {rows, columns}, .hidden = true});
  return layout;
}

/// The hidden matrices, by the paper's lines.
struct Oracle {
  const Layout& layout;
  int one_in;
  std::vector<double> parameters, sums;
  double margin =
      std::numeric_limits<double>::infinity();  ///< between what was chosen and what was not, at least

  Oracle(const Layout& layout_, int one_in_)
      : layout(layout_), one_in(one_in_), parameters(at(layout.size())), sums(at(layout.size())) {
    const Floats x = start(layout);
    std::copy(x.begin(), x.end(), parameters.begin());
  }

  void step(const std::vector<Floats>& gradients) {
    for (const Segment& segment : layout.segments()) {
      if (!segment.hidden) continue;
      for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k)
        for (const Floats& g : gradients)
          sums[k] += static_cast<double>(g[k]) / static_cast<double>(gradients.size());
      const MatrixShape shape = terse::detail::matrix_shape(segment);
      Matrix m(at(shape.rows), at(shape.columns));
      std::copy_n(sums.begin() + segment.offset, m.elements.size(), m.elements.begin());
      // As rows.
      const bool turned = m.rows > m.columns;
      if (turned) m = m.transposed();
      std::vector<double> sizes(m.rows);
      for (std::size_t i = 0; i < m.rows; ++i)
        for (std::size_t j = 0; j < m.columns; ++j) sizes[i] += std::abs(m(i, j));
      std::vector<std::size_t> order(m.rows);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
      const std::size_t chosen = (m.rows + at(one_in) - 1) / at(one_in);
      if (chosen < m.rows)
        margin = std::min(margin, (sizes[order[chosen - 1]] - sizes[order[chosen]]) / sizes[order[0]]);
      Matrix picked(chosen, m.columns);
      for (std::size_t i = 0; i < chosen; ++i)
        for (std::size_t j = 0; j < m.columns; ++j) picked(i, j) = m(order[i], j);
      const Matrix u = reference::orthogonalized(picked, reference::jordan(), 1);
      Matrix step(m.rows, m.columns);
      for (std::size_t i = 0; i < chosen; ++i)
        for (std::size_t j = 0; j < m.columns; ++j) {
          step(order[i], j) = u(i, j);
          m(order[i], j) *= static_cast<double>(momentum);
        }
      if (turned) {
        m = m.transposed();
        step = step.transposed();
      }
      std::copy(m.elements.begin(), m.elements.end(), sums.begin() + segment.offset);
      const double own = static_cast<double>(rate) * static_cast<double>(segment.learning_rate_scale),
                   lost = static_cast<double>(decay) * static_cast<double>(segment.weight_decay),
                   scale =
                       std::sqrt(std::max(1.0, static_cast<double>(m.rows) / static_cast<double>(m.columns)));
      for (std::size_t k = 0; k < step.elements.size(); ++k) {
        double& x = parameters[at(segment.offset) + k];
        x = (1 - own * lost) * x - own * scale * step.elements[k];
      }
    }
  }
};

template <int N>
Dion2<OrthogonalRows<N>> recipe() {
  return {.learning_rate = rate, .weight_decay = decay, .momentum = momentum};
}

template <int N>
void follows_oracle(int ranks) {
  CAPTURE(N);
  const Layout layout = network();
  constexpr std::uint64_t steps = 12;
  const History ours = run(recipe<N>(), layout, ranks, steps, 3, {}, Unchanged{});
  Oracle oracle(layout, N);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    std::vector<Floats> g;
    for (int rank = 0; rank < ranks; ++rank) g.push_back(gradient(layout, rank, step, 3));
    oracle.step(g);
    // No choice hangs on a rounding.
    REQUIRE(oracle.margin > 1e-5);
    const auto hidden_one = [](const Segment& segment) { return segment.hidden; };
    for (const Snapshot& now : ours[step - 1]) {
      REQUIRE(relative_error(layout, now.parameters, oracle.parameters, hidden_one) < 1e-5);
      REQUIRE(relative_error(layout, spread_out(layout, now.state, "momentum"), oracle.sums, hidden_one) <
              1e-6);
      REQUIRE(now.parameters == ours[step - 1][0].parameters);
    }
  }
}

/// The steps at a rate of 1, and what is left of the momentum, with this gradient in all steps.
struct Steps {
  std::vector<Floats> steps, sums;
};
template <int N>
Steps steps_of(const Layout& layout, const Floats& g, int count) {
  Steps all;
  ThreadGroup(1).run([&](Threads& transport) {
    Optimizer optimizer{Dion2<OrthogonalRows<N>>{.learning_rate = 1, .momentum = 0.5F}, transport, layout};
    for (int step = 0; step < count; ++step) {
      Floats x(at(layout.size()));
      optimizer.step(x, g);
      all.steps.push_back(x);
      Seen seen;
      optimizer.walk(seen);
      const auto sums = spread_out(layout, seen, "momentum");
      all.sums.emplace_back(sums.begin(), sums.end());
    }
  });
  return all;
}

}  // namespace

TEST_CASE("Dion2 is its paper's") {
  follows_oracle<4>(1);
  follows_oracle<4>(3);
  follows_oracle<1>(2);
}

TEST_CASE("of all rows it is Muon without Nesterov, to the bit, and M what that would multiply next") {
  const Layout layout = network();
  const History ours = run(recipe<1>(), layout, 2, 8, 3, {}, Unchanged{}),
                muons = run(Muon<>{.learning_rate = rate,
                                   .weight_decay = decay,
                                   .momentum = momentum,
                                   .nesterov = false,
                                   .hidden = {MatrixScale::shape}},
                            layout, 2, 8, 3, {}, Unchanged{});
  for (std::size_t step = 0; step < ours.size(); ++step) {
    REQUIRE(ours[step][0].parameters == muons[step][0].parameters);
    const auto m = spread_out(layout, ours[step][1].state, "momentum"),
               v = spread_out(layout, muons[step][1].state, "momentum");
    for (const Segment& segment : layout.segments())
      for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k)
        REQUIRE(static_cast<float>(m[k]) == (segment.hidden ? momentum : 1) * static_cast<float>(v[k]));
  }
}

TEST_CASE("equal rows go in their order, those that waited come next, and what waits is kept whole") {
  const Layout layout = one_matrix(4, 6);
  Floats g(at(layout.size()));
  for (std::size_t k = 0; k < 24; ++k) g[k] = k % 6 == k / 6 ? 2.0F : 0.0F;
  const Steps steps = steps_of<4>(layout, g, 6);
  // Of sums 2 2 2 2, 3 4 4 4, 5 4 6 6, 7 6 5 8, 9 8 7 6 and 6.5 10 9 8.
  const std::size_t expected[] = {0, 1, 2, 3, 0, 1};
  double sums[4] = {};
  for (std::size_t step = 0; step < 6; ++step) {
    CAPTURE(step);
    for (std::size_t row = 0; row < 4; ++row) {
      CAPTURE(row);
      const bool taken = row == expected[step];
      sums[row] = (sums[row] + 2) * (taken ? 0.5 : 1);
      for (std::size_t column = 0; column < 6; ++column) {
        const std::size_t k = row * 6 + column;
        CHECK(static_cast<double>(steps.sums[step][k]) == (column == row ? sums[row] : 0));
        CHECK((steps.steps[step][k] != 0) == (taken && column == row));
      }
    }
  }
}

TEST_CASE("rows whose sums are near the limit of floats are compared, and gradients of 0 move nothing") {
  for (const auto& [rows, columns] : std::vector<std::pair<index_t, index_t>>{{5, 8}, {8, 5}}) {
    const Layout layout = one_matrix(rows, columns);
    Floats huge(at(layout.size()));
    for (index_t k = 0; k < rows * columns; ++k)
      huge[at(k)] = (k % 3 == 0 ? -0x1p60F : 0x1p60F) * (1 + noise(1, 0, 0, k) / 8);
    const Steps steps = steps_of<2>(layout, huge, 1);
    index_t moved = 0;
    for (const float x : steps.steps[0]) {
      REQUIRE(std::isfinite(x));
      moved += x != 0 ? 1 : 0;
    }
    CHECK(moved == 3 * 8);
    const Steps none = steps_of<2>(layout, Floats(at(layout.size())), 3);
    for (const Floats& step : none.steps) CHECK(step == Floats(at(layout.size())));
    CHECK(none.sums.back() == Floats(at(layout.size())));
  }
}

TEST_CASE(
    "compressed means lead all ranks to the same parameters, and to those of exact ones where all is sent") {
  const Layout layout = network();
  const auto after = [&](const auto& method) {
    const History history = run(method, layout, 3, 5, 3, {}, Unchanged{});
    for (const Snapshot& rank : history.back()) CHECK(rank.parameters == history.back()[0].parameters);
    return history.back()[0].parameters;
  };
  const Floats exact = after(Dion2<>{});
  CHECK(after(Dion2<TopK<>, AllGather>{.compressor = {{.ratio = 1}}}) == exact);
  CHECK(after(Dion2<TopK<>, AllGather>{.compressor = {{.ratio = 0.1F}}}) != exact);
}

TEST_CASE("its policies keep the laws of rules, and a layout without hidden matrices is refused") {
  const laws::Report report = laws::check_rules(ForHiddenMatrices<RowMomentum, ExponentialAverage>{},
                                                ForHiddenMatrices<OrthogonalRows<4>, AdamVariance>{});
  CHECK_MESSAGE(report, report.text());
  ThreadGroup(1).run([&](Threads& transport) {
    CHECK_THROWS_WITH_AS((Optimizer{Dion2<>{}, transport, Layout::flat(50)}),
                         doctest::Contains("no segment of the layout is marked as hidden"), usage_error);
    CHECK_THROWS_WITH_AS((Optimizer{Dion2<>{.momentum = 1}, transport, network()}),
                         doctest::Contains("momentum"), usage_error);
  });
}
