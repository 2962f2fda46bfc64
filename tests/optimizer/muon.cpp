// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>

#include "terse/device/emulated.hpp"
#define TERSE_TEST_DEVICE terse::executor::emulated
#define TERSE_TEST_RECORDING terse::executor::emulated::Recording
#include "device_muon.inc"
#include "reference/muon.hpp"
#include "terse/laws/rule.hpp"
#include "terse/optimizer/dion.hpp"
#include "terse/optimizer/ef21_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/local/local_sgd.hpp"

// Muon, its products and its sequences against oracles in double, and what they promise beside the formulas. What a device
// has of them is in device_muon.inc.

namespace {

using reference::Matrix;

Matrix widened_matrix(const Floats& m, MatrixShape shape) {
  Matrix wide(at(shape.rows), at(shape.columns));
  for (std::size_t k = 0; k < wide.elements.size(); ++k) wide.elements[k] = static_cast<double>(m[k]);
  return wide;
}
double distance(const Matrix& a, const Matrix& b) {
  double worst = 0;
  for (std::size_t k = 0; k < a.elements.size(); ++k)
    worst = std::max(worst, std::abs(a.elements[k] - b.elements[k]));
  return worst;
}
Floats transposed(const Floats& m, MatrixShape shape) {
  Floats t(m.size());
  for (index_t i = 0; i < shape.rows; ++i)
    for (index_t j = 0; j < shape.columns; ++j) t[at(j * shape.rows + i)] = m[at(i * shape.columns + j)];
  return t;
}

/// What a Sequence makes of one matrix.
template <class Sequence>
Floats orthogonal(Floats g, MatrixShape shape) {
  Layout layout;
  layout.add({.name = "m", .shape = {shape.rows, shape.columns}, .hidden = true});
  g.resize(at(layout.size()));
  terse::detail::Orthogonalizer<executor::host, Sequence>(executor::host{}, layout)(executor::host{},
                                                                                    g.data());
  g.resize(at(shape.rows * shape.columns));
  return g;
}

/// U diag(s) V^T for given s and drawn U, V.
Floats with_values(const std::vector<double>& s, MatrixShape shape, std::uint64_t seed) {
  const auto factor = [&](index_t rows, std::uint64_t number) {
    const MatrixShape tall{rows, static_cast<index_t>(s.size())};
    return reference::svd(widened_matrix(matrix_of(seed + number, tall.rows * tall.columns), tall)).polar;
  };
  Matrix u = factor(shape.rows, 0);
  for (std::size_t i = 0; i < u.rows; ++i)
    for (std::size_t k = 0; k < s.size(); ++k) u(i, k) *= s[k];
  const Matrix product = u * factor(shape.columns, 1).transposed();
  return {product.elements.begin(), product.elements.end()};
}

/// 0.0017 and up, of a norm of 1.
std::vector<double> spread_values(std::size_t count, double least) {
  std::vector<double> s(count);
  for (std::size_t k = 0; k < count; ++k)
    s[k] = std::pow(least, static_cast<double>(k) / static_cast<double>(count - 1));
  double square = 0;
  for (const double value : s) square += value * value;
  for (double& value : s) value /= std::sqrt(square);
  return s;
}

std::vector<std::array<double, 3>> polar_express() {
  std::vector<std::array<double, 3>> steps;
  for (const Quintic& q : PolarExpressSequence::steps)
    steps.push_back({static_cast<double>(q.a), static_cast<double>(q.b), static_cast<double>(q.c)});
  return steps;
}

std::vector<Floats> gradients_of(const Layout& layout, int ranks, std::uint64_t step) {
  std::vector<Floats> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(gradient(layout, rank, step, 3));
  return all;
}

/// The largest distance of any rank's parameters from the oracle's in any step.
template <class R>
double from_oracle(const R& recipe, const reference::Muon::Options& options, int ranks, std::uint64_t steps,
                   float clip = std::numeric_limits<float>::infinity()) {
  const Layout layout = network();
  const History history = run(recipe, layout, ranks, steps, 3, {.clip_norm = clip}, Unchanged{});
  reference::Muon oracle(layout, ranks, options, start(layout));
  double worst = 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    oracle.step(gradients_of(layout, ranks, step), static_cast<double>(recipe.learning_rate));
    for (const Snapshot& rank : history[step - 1])
      for (std::size_t k = 0; k < rank.parameters.size(); ++k)
        worst = std::max(worst, std::abs(static_cast<double>(rank.parameters[k]) - oracle.parameters[k]));
  }
  return worst;
}

}  // namespace

TEST_CASE(
    "products are those of an oracle in double, and of transposed matrices in the other order, to the bit") {
  struct Case {
    index_t rows, columns, inner;
  };
  for (const auto [rows, columns, inner] :
       std::initializer_list<Case>{{1, 1, 1}, {17, 40, 600}, {130, 3, 40}, {5, 161, 257}, {100, 100, 16}}) {
    const MatrixShape shape{rows, columns};
    const Matrix left = widened_matrix(matrix_of(1, rows * inner), {rows, inner}),
                 right = widened_matrix(matrix_of(2, inner * columns), {inner, columns}),
                 added = widened_matrix(matrix_of(3, rows * columns), shape);
    const Floats product = product_on<executor::host>(shape, inner, false, false, true);
    Matrix expected = 0.7 * (left * right) + -1.3 * added;
    for (std::size_t k = 0; k < std::min(expected.rows, expected.columns); ++k) expected(k, k) += 0.25;
    CHECK(distance(widened_matrix(product, shape), expected) < 1e-6 * std::sqrt(static_cast<double>(inner)));
    buffer<float> to(rows * columns), scratch(terse::detail::product_scratch(executor::host{}));
    const Floats l = matrix_of(1, rows * inner), r = matrix_of(2, inner * columns);
    const Floats plain = product_on<executor::host>(shape, inner, false, false, false);
    multiply_into(executor::host{},
                  {.left = MatrixView::of(r.data(), {inner, columns}).transposed(),
                   .right = MatrixView::of(l.data(), {rows, inner}).transposed(),
                   .scale = 0.7F,
                   .diagonal = 0.25F},
                  to.data(), scratch.data());
    CHECK(transposed(Floats(to.data(), to.data() + to.size()), {columns, rows}) == plain);
  }
  CHECK(gram_on<executor::host>({150, 300}, true) == gram_on<executor::host>({150, 300}, false));
}

TEST_CASE("five steps of Newton-Schulz follow the formula in double") {
  for (const MatrixShape shape :
       {MatrixShape{1, 1}, {1, 30}, {30, 1}, {17, 40}, {40, 17}, {24, 24}, {9, 80}}) {
    CAPTURE(shape.rows);
    CAPTURE(shape.columns);
    const Floats g = matrix_of(7, shape.rows * shape.columns);
    const Matrix wide = widened_matrix(g, shape);
    CHECK(distance(widened_matrix(orthogonal<NewtonSchulzSequence>(g, shape), shape),
                   reference::orthogonalized(wide, reference::jordan(), 1)) < 2e-5);
    CHECK(distance(widened_matrix(orthogonal<PolarExpressSequence>(g, shape), shape),
                   reference::orthogonalized(wide, polar_express(), 1.02)) < 2e-5);
  }
}

TEST_CASE("singular values end where the sequences say, and the factors stay") {
  for (const MatrixShape shape : {MatrixShape{24, 40}, {40, 24}, {24, 60}, {60, 24}}) {
    const Floats g = with_values(spread_values(24, 0.004), shape, 11);
    const reference::Svd before = reference::svd(widened_matrix(g, shape));
    REQUIRE(before.values.back() > 0.0016);
    const reference::Svd jordan =
        reference::svd(widened_matrix(orthogonal<NewtonSchulzSequence>(g, shape), shape));
    CHECK(jordan.values.front() < 1.203);
    CHECK(jordan.values.back() > 0.681);
    const Matrix polar = widened_matrix(orthogonal<PolarExpressSequence>(g, shape), shape);
    const reference::Svd express = reference::svd(polar);
    CHECK(express.values.front() < 1.15);
    CHECK(express.values.back() > 0.84);
    // Its factors are the matrix's own: it differs from U V^T, which Jacobi's rotations found, by its values alone.
    CHECK(distance(express.polar, before.polar) < 1e-3);
    double square = 0;
    for (const double s : express.values) square += (s - 1) * (s - 1);
    CHECK(std::abs((polar + -1.0 * before.polar).norm() - std::sqrt(square)) < 1e-3);
  }
}

TEST_CASE("equal singular values all go the same way, and a matrix of rank one stays one") {
  const auto polynomial = [](double s) {
    for (const auto& [a, b, c] : reference::jordan()) s = a * s + b * s * s * s + c * s * s * s * s * s;
    return s;
  };
  CHECK(polynomial(1) == doctest::Approx(0.6964).epsilon(1e-3));
  for (const std::size_t rank : {std::size_t{1}, std::size_t{2}, std::size_t{4}, std::size_t{16}}) {
    const std::vector<double> equal(rank, 3.0);
    const MatrixShape shape{20, rank < 4 ? 60 : 33};
    const reference::Svd after = reference::svd(
        widened_matrix(orthogonal<NewtonSchulzSequence>(with_values(equal, shape, 5), shape), shape));
    const double expected = polynomial(1 / std::sqrt(static_cast<double>(rank)));
    for (std::size_t k = 0; k < rank; ++k) CHECK(after.values[k] == doctest::Approx(expected).epsilon(1e-4));
    CHECK(after.values[rank] < 1e-3);
  }
}

TEST_CASE("transposed matrices get the transposed step, scaled ones the same, and zeros stay zeros") {
  for (const MatrixShape shape : {MatrixShape{18, 30}, {12, 40}}) {
    Floats integers = matrix_of(3, shape.rows * shape.columns);
    for (float& x : integers) x = std::round(8 * x);  // norms are exact, in any order
    const Floats step = orthogonal<NewtonSchulzSequence>(integers, shape);
    CHECK(
        transposed(orthogonal<NewtonSchulzSequence>(transposed(integers, shape), {shape.columns, shape.rows}),
                   {shape.columns, shape.rows}) == step);
    // To the bit: a power of two is taken out first. The last one makes of 1 the least float that has all its bits.
    for (const float scale : {0x1p40F, 0x1p-10F, 0x1p55F, 0x1p-30F, 0x1p-75F, 0x1p-126F}) {
      CAPTURE(scale);
      Floats scaled = integers;
      for (float& x : scaled) x *= scale;
      CHECK(orthogonal<NewtonSchulzSequence>(scaled, shape) == step);
    }
    const Floats zeros(integers.size());
    CHECK(orthogonal<NewtonSchulzSequence>(zeros, shape) == zeros);
    CHECK(orthogonal<PolarExpressSequence>(zeros, shape) == zeros);
    // Numbers with fewer bits left get the step of what they have become.
    Floats tiny(integers.size(), 0.0F), wide = tiny;
    for (std::size_t k = 0; k < tiny.size(); ++k) {
      tiny[k] = integers[k] * 0x1p-148F;
      wide[k] = tiny[k] * 0x1p120F * 0x1p28F;
    }
    CHECK(orthogonal<NewtonSchulzSequence>(tiny, shape) == orthogonal<NewtonSchulzSequence>(wide, shape));
  }
}

TEST_CASE("hidden matrices have the same steps in any unit of the gradients") {
  Layout layout;
  layout.add({.name = "wide", .shape = {24, 40}, .hidden = true});
  layout.add({.name = "tall", .shape = {60, 20}, .hidden = true}).add({"last", {10, 24}});
  const auto after = [&](const auto& recipe, float scale) {
    Floats x;
    ThreadGroup(2).run([&](Threads& transport) {
      Optimizer optimizer{recipe, transport, layout};
      Floats own = start(layout);
      for (std::uint64_t step = 1; step <= 4; ++step)
        optimizer.step(own, gradient(layout, transport.rank(), step, 3), scale);
      if (transport.rank() == 0) x = own;
    });
    return x;
  };
  const auto hidden_are_equal = [&](const auto& recipe, float scale) {
    const Floats one = after(recipe, 1), other = after(recipe, scale);
    for (const Segment& segment : layout.segments())
      for (std::size_t k = at(segment.offset); segment.hidden && k < at(segment.offset + segment.count); ++k)
        REQUIRE(one[k] == other[k]);
  };
  for (const float scale : {0x1p-30F, 0x1p-100F}) {
    hidden_are_equal(Muon<>{.learning_rate = 0.02F}, scale);
    hidden_are_equal(Dion2<>{.learning_rate = 0.02F}, scale);
    hidden_are_equal(Dion<2>{.learning_rate = 0.02F}, scale);
  }
}

TEST_CASE("Muon follows the oracle") {
  using Options = reference::Muon::Options;
  for (const int ranks : {1, 2, 3}) CHECK(from_oracle(Muon<>{.learning_rate = 0.02F}, {}, ranks, 6) < 2e-5);
  CHECK(from_oracle(Muon<>{.learning_rate = 0.02F,
                           .weight_decay = 0.1F,
                           .momentum = 0.8F,
                           .nesterov = false,
                           .hidden = {MatrixScale::shape},
                           .beta1 = 0.8F,
                           .beta2 = 0.9F},
                    Options{.momentum = static_cast<double>(0.8F),
                            .nesterov = false,
                            .rms = false,
                            .beta1 = static_cast<double>(0.8F),
                            .beta2 = static_cast<double>(0.9F),
                            .weight_decay = static_cast<double>(0.1F)},
                    3, 6) < 2e-5);
  CHECK(from_oracle(Muon<PolarExpress, Ring>{.learning_rate = 0.02F},
                    Options{.clip_norm = 3, .steps = polar_express(), .margin = 1.02}, 3, 6, 3) < 2e-5);
}

TEST_CASE("segments that are not hidden are Adam's, to the bit") {
  const Layout layout = network();
  const auto check = [&](const auto& muon, const auto& adam) {
    const History ours = run(muon, layout, 3, 5, 3, {.clip_norm = 4}, Unchanged{}),
                  adams = run(adam, layout, 3, 5, 3, {.clip_norm = 4}, Unchanged{});
    for (const Segment& segment : layout.segments()) {
      CAPTURE(segment.name);
      const auto of_segment = [&](const Floats& x) {
        return Floats(x.begin() + segment.offset, x.begin() + segment.offset + segment.count);
      };
      const Floats here = of_segment(ours.back().front().parameters),
                   there = of_segment(adams.back().front().parameters);
      CHECK((here == there) == !segment.hidden);
    }
  };
  check(Muon<>{.weight_decay = 0.1F}, Adam<>{.weight_decay = 0.1F});
  check(Muon<TopK<>>{.weight_decay = 0.1F, .compressor = {{.ratio = 0.2F}}},
        Adam<TopK<>>{.weight_decay = 0.1F, .compressor = {{.ratio = 0.2F}}});
}

TEST_CASE("ForHiddenMatrices is either policy where it belongs, to the bit") {
  const Layout layout = network();
  const auto after = [&](const auto& recipe) {
    return run(recipe, layout, 2, 5, 3, {}, Unchanged{}).back().front().parameters;
  };
  const Floats both =
      after(Averaging<ForHiddenMatrices<ExponentialAverage, NesterovAverage>,
                      ForHiddenMatrices<AmsgradVariance, AdamVariance>>{.learning_rate = 0.01F});
  const Floats hidden = after(Averaging<ExponentialAverage, AmsgradVariance>{.learning_rate = 0.01F}),
               other = after(Averaging<NesterovAverage, AdamVariance>{.learning_rate = 0.01F});
  for (const Segment& segment : layout.segments())
    for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
      REQUIRE(both[at(i)] == (segment.hidden ? hidden : other)[at(i)]);
}

TEST_CASE("compressed means and other topologies lead all ranks to the same parameters") {
  const Layout layout = network();
  const auto check = [&](const auto& recipe) {
    const History history = run(recipe, layout, 3, 5, 3, {}, Unchanged{});
    for (const Snapshot& rank : history.back()) CHECK(rank.parameters == history.back().front().parameters);
    CHECK(history.back().front().parameters != start(layout));
    return history.back().front().parameters;
  };
  const Floats exact = check(Muon<>{});
  CHECK(check(Muon<AllGather>{}) == exact);
  // All is picked: the mean is exact, and so is what comes of it.
  CHECK(check(Muon<TopK<>, AllGather>{.compressor = {{.ratio = 1}}}) == exact);
  CHECK(check(Muon<TopK<>, AllGather>{.compressor = {{.ratio = 0.1F}}}) != exact);
  check(Muon<Sign, Ring>{});
  check(Muon<TopK<>, Ef21, AllGather>{.compressor = {{.ratio = 0.1F}}});
  check(Muon<LowRank<2>>{.compressor = {.min_compression = 1}});
  check(LocalSgd<Muon<>>{.period = 5});
  // MuLoCo, whose memory stays empty where all is sent.
  const Floats outside = check(DiLoCo<Muon<>>{.period = 1});
  CHECK(check(DiLoCo<Muon<>, TopK<>, Residual, AllGather>{
            .period = 1, .compressor = {{.ratio = 1}}, .error_feedback = {.decay = 0.9F}}) == outside);
  CHECK(check(DiLoCo<Muon<>, Uniform<2>, Residual>{.period = 1, .error_feedback = {.decay = 0.9F}}) !=
        outside);
}

TEST_CASE("groups of segments have a momentum and a scale of their own") {
  Layout layout = network(), grouped;
  for (Segment segment : layout.segments()) {
    segment.group = segment.name == "tall" ? 3 : 0;
    grouped.add(segment);
  }
  ThreadGroup(2).run([&](Threads& transport) {
    const Muon<> mine{.learning_rate = 0.01F};
    const Muon<> other{.learning_rate = 0.02F, .momentum = 0.5F, .hidden = {MatrixScale::shape}};
    Optimizer both{mine, transport, grouped}, one{mine, transport, layout}, two{other, transport, layout};
    both.group(3) = other;
    Floats x = start(layout), y = x, z = x;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const Floats g = gradient(layout, transport.rank(), step, 3);
      both.step(x, g);
      one.step(y, g);
      two.step(z, g);
    }
    for (const Segment& segment : grouped.segments())
      for (index_t i = segment.offset; i < segment.offset + segment.count; ++i)
        REQUIRE(x[at(i)] == (segment.group == 3 ? z : y)[at(i)]);
  });
}

TEST_CASE("a layout without hidden matrices, and a hidden vector, are refused in words") {
  Layout layout;
  CHECK_THROWS_WITH_AS(layout.add({.name = "v", .shape = {5}, .hidden = true}),
                       doctest::Contains("'v' is marked as hidden and is no matrix"), usage_error);
  layout.add({"w", {4, 5}});
  ThreadGroup(1).run([&](Threads& transport) {
    CHECK_THROWS_WITH_AS((Optimizer{Muon<>{}, transport, layout}),
                         doctest::Contains("no segment of the layout is marked as hidden"), usage_error);
  });
  Layout marked;
  marked.add({.name = "w", .shape = {4, 5}, .hidden = true});
  CHECK(terse::detail::layout_hash(layout) != terse::detail::layout_hash(marked));
}

TEST_CASE("Muon's policies keep the laws of rules, and its state goes through a file") {
  const laws::Report report = laws::check_rules(ForHiddenMatrices<HeavyBall, ExponentialAverage>{},
                                                ForHiddenMatrices<SignStep, AdamVariance>{});
  CHECK_MESSAGE(report, report.text());
  const laws::Report whole = laws::check_preconditioner(ForHiddenMatrices<NewtonSchulz, AdamVariance>{});
  CHECK_MESSAGE(whole, whole.text());

  const auto folder = std::filesystem::temp_directory_path() / ("terse_muon_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  ThreadGroup(2).run([&](Threads& transport) {
    const Layout layout = network();
    const auto file = folder / std::to_string(transport.rank());
    Optimizer through{Muon<>{}, transport, layout}, resumed{Muon<>{}, transport, layout};
    Floats x = start(layout), y(x.size(), 3);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      if (step == 4) {
        checkpoint::save(file, through, x);
        checkpoint::load(file, resumed, y);
      }
      through.step(x, gradient(layout, transport.rank(), step, 3));
      if (step >= 4) resumed.step(y, gradient(layout, transport.rank(), step, 3));
    }
    CHECK(checkpoint::parameters_hash(layout, x) == checkpoint::parameters_hash(layout, y));
  });
  std::filesystem::remove_all(folder);
}
