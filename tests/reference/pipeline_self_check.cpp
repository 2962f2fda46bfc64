// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "reference/pipeline.hpp"

// The oracle of pipelines against closed forms, enumerations and its method's error laws.

using namespace terse::reference;

namespace {

using Row = std::vector<double>;
using Mode = Boundary::Mode;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Within that share of `value`; doctest's own adds 1 to it.
doctest::Approx about(double value) { return doctest::Approx(value).scale(0); }

class Source {
 public:
  Row normal(std::size_t count, double deviation = 1) {
    Row row(count);
    for (double& value : row) value = deviation * normal_(engine_);
    return row;
  }
  std::vector<Row> rows(std::size_t rows, std::size_t width) {
    std::vector<Row> all;
    for (std::size_t r = 0; r < rows; ++r) all.push_back(normal(width));
    return all;
  }
  /// Of length 1.
  Row direction(std::size_t count);
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), engine_);
  }

 private:
  std::mt19937_64 engine_{11};
  std::normal_distribution<double> normal_;
};

double square(const Row& row) { return std::inner_product(row.begin(), row.end(), row.begin(), 0.0); }
double norm(const Row& row) { return std::sqrt(square(row)); }
Row minus(Row a, const Row& b) {
  for (std::size_t k = 0; k < a.size(); ++k) a[k] -= b[k];
  return a;
}
void add(Row& sum, double factor, const Row& row) {
  for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += factor * row[k];
}
double largest(const Row& row) {
  double most = 0;
  for (const double value : row) most = std::max(most, std::abs(value));
  return most;
}
Row Source::direction(std::size_t count) {
  Row row = normal(count);
  const double length = norm(row);
  for (double& value : row) value /= length;
  return row;
}

/// The root of the mean ||Q(d) - d||^2 over the mean ||d||^2 for normal d.
double contraction(int bits, std::size_t block) {
  Source source;
  const Rounding quantize = Rounding::asymmetric(bits, block);
  double lost = 0, whole = 0;
  for (int sample = 0; sample < 400; ++sample) {
    const Row d = source.normal(block);
    lost += square(minus(quantize(d), d));
    whole += square(d);
  }
  return std::sqrt(lost / whole);
}

/// Those >= 0 of a format with `mantissa` bits and that bias, by their codes: bit fields read as IEEE 754 says.
Row numbers(int mantissa, int bias) {
  const int exponents = 2 * bias + 1;  // the next one has infinity
  Row all;
  for (int exponent = 0; exponent < exponents; ++exponent)
    for (int fraction = 0; fraction < 1 << mantissa; ++fraction) {
      const int significand = exponent == 0 ? fraction : fraction + (1 << mantissa);
      all.push_back(std::ldexp(significand, std::max(exponent, 1) - bias - mantissa));
    }
  return all;
}

/// By search; of two as near the one with the even code.
double nearest_of(const Row& numbers, double value) {
  const double size = std::abs(value);
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), size);
  double best = numbers.back();
  if (above == numbers.begin()) {
    best = *above;
  } else if (above != numbers.end()) {
    const double up = *above - size, down = size - *(above - 1);
    const bool even = (above - numbers.begin()) % 2 == 0;
    best = up < down || (up == down && even) ? *above : *(above - 1);
  }
  return std::copysign(best, value);
}

Boundary boundary(Mode mode, Rounding forward, Rounding store = {}, Rounding first = {}) {
  Boundary made;
  made.options.mode = mode;
  made.options.forward = forward;
  made.options.store = store;
  made.options.first = first;
  return made;
}

LinearStage stage(Source& source, std::size_t inputs, std::size_t outputs, bool relu) {
  return {inputs,
          outputs,
          source.normal(inputs * outputs, 1 / std::sqrt(static_cast<double>(inputs))),
          source.normal(outputs, 0.1),
          relu,
          {},
          {}};
}

LinearStage scalar_stage(double weight, double bias) { return {1, 1, {weight}, {bias}, false, {}, {}}; }

/// All parameters in a row, to read and to change.
std::vector<double*> parameters(std::vector<LinearStage>& stages) {
  std::vector<double*> all;
  for (LinearStage& one : stages) {
    for (double& weight : one.weights) all.push_back(&weight);
    for (double& bias : one.biases) all.push_back(&bias);
  }
  return all;
}
Row values(std::vector<LinearStage> stages) {
  Row all;
  for (const double* parameter : parameters(stages)) all.push_back(*parameter);
  return all;
}

/// The mean loss of the composed function, an element at a time.
double composed_output(const std::vector<LinearStage>& stages, std::size_t depth, const double* input,
                       std::size_t output) {
  if (depth == 0) return input[output];
  const LinearStage& last = stages[depth - 1];
  double sum = last.biases[output];
  for (std::size_t i = 0; i < last.inputs; ++i)
    sum += last.weights[output * last.inputs + i] * composed_output(stages, depth - 1, input, i);
  return last.relu ? std::max(sum, 0.0) : sum;
}
double composed_loss(const std::vector<LinearStage>& stages, std::size_t rows, const Row& inputs,
                     const Row& targets) {
  const std::size_t in = stages.front().inputs, out = stages.back().outputs;
  double sum = 0;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t o = 0; o < out; ++o) {
      const double y = composed_output(stages, stages.size(), inputs.data() + r * in, o);
      sum += 0.5 * std::pow(y - targets[r * out + o], 2);
    }
  return sum / static_cast<double>(rows);
}

/// Examples with an input and a target each, and batches of them.
struct Examples {
  std::size_t count, in, out;
  Row inputs, targets;

  struct Batch {
    std::vector<std::uint64_t> ids;
    Row inputs, targets;
  };
  /// Rows [first, first + rows) of that order; ids are scattered.
  Batch batch(const std::vector<std::size_t>& order, std::size_t first, std::size_t rows) const {
    Batch made;
    for (std::size_t r = first; r < first + rows; ++r) {
      made.ids.push_back(order[r] * 0x9E3779B97F4A7C15U);
      for (std::size_t k = 0; k < in; ++k) made.inputs.push_back(inputs[order[r] * in + k]);
      for (std::size_t k = 0; k < out; ++k) made.targets.push_back(targets[order[r] * out + k]);
    }
    return made;
  }
  std::vector<std::size_t> order() const {
    std::vector<std::size_t> all(count);
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }
};
Examples random_examples(Source& source, std::size_t count, std::size_t in, std::size_t out) {
  return {count, in, out, source.normal(count * in), source.normal(count * out)};
}

double train(Pipeline& pipeline, const Examples::Batch& batch) {
  return pipeline.train(batch.ids, batch.inputs, batch.targets);
}

}  // namespace

TEST_CASE("levels by hand") {
  const Rounding two = Rounding::asymmetric(2, 4);
  // s = 2: levels -2, -1, 0, 1. The ties -1.5, -0.5, 0.5 go to even t; what lies above 1 goes there.
  CHECK(two({-2, -1.5, -0.5, 0.5}) == Row{-2, -2, 0, 0});
  CHECK(two({2, 1.6, 1.5, -1.4}) == Row{1, 1, 1, -1});
  // Blocks begin with the row; the last one is shorter.
  CHECK(two({-2, 0.9, 0, 0, -8, 0.9, 3, -3, -1, 0.8}) == Row{-2, 1, 0, 0, -8, 0, 4, -4, -1, 0.5});
  CHECK(two({0, 0, 0, 0}) == Row{0, 0, 0, 0});
  CHECK(two(Row{}).empty());
  CHECK(Rounding::asymmetric(3, 4)({-4, 3.4, 4, -1.6}) == Row{-4, 3, 3, -2});
  CHECK(Rounding::symmetric(2, 4)({-2, 2, 0.9, -1.1}) == Row{-2, 2, 0, -2});
  CHECK(Rounding::symmetric(3, 4)({-3, 3, 1.5, 2.5}) == Row{-3, 3, 2, 2});
  CHECK(Rounding{}({0.1, -1e300}) == Row{0.1, -1e300});
  CHECK_THROWS_AS(Rounding::asymmetric(1, 4)({1}), std::invalid_argument);

  // No level of the book is nearer, and there are 2^b or 2^b - 1 of them.
  Source source;
  for (const int bits : {2, 3, 4, 8})
    for (const bool symmetric : {false, true}) {
      const std::size_t block = 64;
      const Row x = source.normal(3 * block + 5);
      const Row y = symmetric ? Rounding::symmetric(bits, block)(x) : Rounding::asymmetric(bits, block)(x);
      double excess = 0;
      for (std::size_t begin = 0; begin < x.size(); begin += block) {
        const std::size_t end = std::min(begin + block, x.size());
        const double scale = largest(Row(&x[begin], &x[begin] + (end - begin)));
        const int count = (1 << bits) - (symmetric ? 1 : 0);
        const double step = 2 * scale / (symmetric ? count - 1 : count);
        for (std::size_t k = begin; k < end; ++k) {
          double least = infinity;
          for (int level = 0; level < count; ++level)
            least = std::min(least, std::abs(x[k] - (-scale + level * step)));
          excess = std::max(excess, std::abs(std::abs(x[k] - y[k]) - least));
        }
      }
      CHECK(excess < 1e-14);
    }
}

TEST_CASE("formats by enumeration") {
  Source source;
  const Row halves = numbers(10, 15), brains = numbers(7, 127);
  REQUIRE(halves.size() == 0x7C00);
  REQUIRE(halves.back() == 65504);
  REQUIRE(brains.size() == 0x7F80);
  int wrong = 0;
  const auto compare = [&](double x) {
    wrong += Rounding::fp16()({x})[0] != nearest_of(halves, x);
    wrong += Rounding::bf16()({x})[0] != nearest_of(brains, x);
    const double narrow = std::clamp(x, -static_cast<double>(std::numeric_limits<float>::max()),
                                     static_cast<double>(std::numeric_limits<float>::max()));
    wrong += Rounding::fp32()({x})[0] != static_cast<double>(static_cast<float>(narrow));
  };
  for (const int exponent : {-149, -136, -133, -126, -40, -26, -24, -14, -3, 0, 3, 15, 16, 100, 127, 300})
    for (int sample = 0; sample < 300; ++sample)
      compare(std::ldexp(source.uniform(1, 2), exponent) * (sample % 2 == 0 ? 1 : -1));
  for (std::size_t k = 0; k + 1 < halves.size(); k += 7) {
    compare(halves[k]);
    compare((halves[k] + halves[k + 1]) / 2);
    compare(-(brains[k] + brains[k + 1]) / 2);
  }
  for (const double x : {0.0, 65519.99, 65520.0, 65536.0, 1e39, 1e300, -1e300}) compare(x);
  CHECK(wrong == 0);
}

TEST_CASE("eight bits with a scale for each 64 elements") {
  Source source;
  const Row x = source.normal(3 * 64 + 7), y = Rounding::int8()(x);
  double worst = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += 64) {
    const std::size_t end = std::min(begin + 64, x.size());
    const double scale = largest(Row(&x[begin], &x[begin] + (end - begin)));
    for (std::size_t k = begin; k < end; ++k) {
      if (std::abs(x[k]) == scale) CHECK(y[k] == x[k]);
      const double t = y[k] / scale * 127;
      CHECK(std::abs(t - std::round(t)) < 1e-12);
      worst = std::max(worst, std::abs(x[k] - y[k]) / scale);
    }
  }
  CHECK(worst <= 0.5 / 127 * (1 + 1e-12));
  CHECK(worst > 0.45 / 127);
}

TEST_CASE("the contraction on normal changes") {
  CHECK(contraction(2, 64) == about(0.41).epsilon(0.025));
  CHECK(contraction(2, 256) == about(0.45).epsilon(0.04));
  CHECK(contraction(2, 1024) == about(0.50).epsilon(0.025));
  CHECK(contraction(3, 64) == about(0.20).epsilon(0.03));
  CHECK(contraction(3, 256) == about(0.225).epsilon(0.03));
  CHECK(contraction(4, 64) == about(0.10).epsilon(0.04));
  CHECK(contraction(4, 256) == about(0.112).epsilon(0.04));
}

TEST_CASE("the worst contraction is met and never passed") {
  // One element +s loses a step, and n - 1 of half a step lose all: (h = step / 2)
  // ||e||^2 / ||d||^2 = (step^2 + (n - 1) h^2) / (1 + (n - 1) h^2).
  Source source;
  for (const int bits : {2, 3, 4})
    for (const std::size_t block : {std::size_t{64}, std::size_t{256}}) {
      const double step = std::ldexp(1.0, 1 - bits), half = step / 2, others = static_cast<double>(block - 1);
      const double worst = std::sqrt((step * step + others * half * half) / (1 + others * half * half));
      CHECK(worst < 1);
      const Rounding quantize = Rounding::asymmetric(bits, block);
      Row d(block, half);
      d[5] = 1;
      CHECK(norm(minus(quantize(d), d)) / norm(d) == about(worst).epsilon(1e-12));
      double most = 0;
      for (int sample = 0; sample < 60; ++sample) {
        Row hard = source.normal(block, source.uniform(0.1, 1) * step);
        hard[7] = 1;
        most = std::max(most, norm(minus(quantize(hard), hard)) / norm(hard));
      }
      CHECK(most <= worst);
    }
}

TEST_CASE("visits by hand") {
  // D = 4. First visit: all is sent, and R acts on the copy alone.
  const std::uint64_t id = 12345678901234567U;
  Boundary changes = boundary(Mode::changes, Rounding::asymmetric(2, 4), Rounding::bf16());
  Boundary::Visit visit = changes.visit(id, {1.00390625, -2, 0, 8});
  CHECK(visit.fresh);
  CHECK(visit.x == Row{1.00390625, -2, 0, 8});
  CHECK(changes.memory.at(id) == Row{1, -2, 0, 8});
  // d = (-0.5, 0.25, 0.001953125, -1): s = 1.
  visit = changes.visit(id, {0.5, -1.75, 0.001953125, 7});
  CHECK(!visit.fresh);
  CHECK(visit.d == Row{-0.5, 0.25, 0.001953125, -1});
  CHECK(visit.x == Row{0.5, -2, 0, 7});
  CHECK(changes.memory.at(id) == Row{0.5, -2, 0, 7});
  // q = (0, 0, 0, 0.01171875): 7.01171875 arrives, of which bf16 keeps 7.
  visit = changes.visit(id, {0.5, -2, 0, 7.0234375});
  CHECK(visit.x == Row{0.5, -2, 0, 7.01171875});
  CHECK(changes.memory.at(id) == Row{0.5, -2, 0, 7});
  // Other examples have copies of their own.
  CHECK(changes.visit(3, {1, 1, 1, 1}).fresh);
  CHECK(changes.memory.at(id) == Row{0.5, -2, 0, 7});

  // m comes from what was encoded, not from a.
  Boundary coarse = boundary(Mode::changes, Rounding::asymmetric(2, 4), {}, Rounding::symmetric(2, 4));
  CHECK(coarse.visit(id, {0.9, -2, 0, 2}).x == Row{0, -2, 0, 2});
  CHECK(coarse.memory.at(id) == Row{0, -2, 0, 2});
  CHECK(coarse.visit(id, {0.9, -2, 0, 2}).x == Row{0.45, -2, 0, 2});

  Boundary direct = boundary(Mode::direct, Rounding::asymmetric(2, 4));
  CHECK(direct.visit(id, {2, 1.6, 0, -1.4}).x == Row{1, 1, 0, -1});
  CHECK(direct.visit(id, {2, 1.6, 0, -1.4}).x == Row{1, 1, 0, -1});
  Boundary exact = boundary(Mode::exact, Rounding::asymmetric(2, 4));
  CHECK(exact.visit(id, {2, 1.6, 0, -1.4}).x == Row{2, 1.6, 0, -1.4});
  CHECK(direct.memory.empty());
  CHECK(exact.memory.empty());
}

TEST_CASE("frozen activations are learned, directly quantized ones are not") {
  Source source;
  const std::size_t examples = 24, width = 128;
  struct Law {
    int bits;
    double c, least, most;
  };
  for (const Law law : {Law{2, 0.41, 0.38, 0.52}, Law{3, 0.20, 0.18, 0.27}, Law{4, 0.10, 0.085, 0.14}}) {
    const double half = std::ldexp(1.0, -law.bits), others = 63;
    const double worst = std::sqrt((4 * half * half + others * half * half) / (1 + others * half * half));
    Boundary changes = boundary(Mode::changes, Rounding::asymmetric(law.bits, 64));
    Boundary direct = boundary(Mode::direct, Rounding::asymmetric(law.bits, 64));
    std::vector<Row> a = source.rows(examples, width);
    for (std::size_t i = 0; i < examples; ++i) {
      changes.visit(i, a[i]);
      add(a[i], 0.3, source.normal(width));
    }
    double size = 0, last = 0;
    for (std::size_t i = 0; i < examples; ++i) {
      size += square(a[i]);
      last += square(minus(a[i], changes.memory.at(i)));
    }
    for (int visit = 0; visit < 8; ++visit) {
      double error = 0, bias = 0;
      for (std::size_t i = 0; i < examples; ++i) {
        const double before = norm(minus(a[i], changes.memory.at(i)));
        const double after = norm(minus(a[i], changes.visit(i, a[i]).x));
        CHECK(after <= worst * before);
        error += after * after;
        bias += square(minus(a[i], direct.visit(i, a[i]).x));
      }
      const double ratio = std::sqrt(error / last);
      CHECK(ratio > law.least);
      CHECK(ratio < law.most);
      CHECK(std::sqrt(bias / size) == about(law.c).epsilon(0.06));
      last = error;
    }
    CHECK(std::sqrt(last / size) < std::pow(law.most, 8) * 0.31);
  }
}

TEST_CASE("errors of frozen activations end at the store's floor") {
  // R moves normal numbers by up to r = 2^-11, 2^-8 of themselves, and 64 of them by 1 / 254 of the largest; then c
  // of that is left: between 2 and 60 % of r.
  Source source;
  struct Floor {
    Rounding store;
    double rounding;
  };
  for (const Floor& floor : {Floor{Rounding::fp16(), 0x1p-11}, Floor{Rounding::bf16(), 0x1p-8},
                             Floor{Rounding::int8(), 2.5 / 254}, Floor{Rounding::fp32(), 0x1p-24}})
    for (const int bits : {2, 3, 4}) {
      Boundary changes = boundary(Mode::changes, Rounding::asymmetric(bits, 64), floor.store);
      double error = 0, size = 0;
      for (std::size_t i = 0; i < 16; ++i) {
        const Row a = source.normal(128);
        changes.visit(i, source.normal(128));
        for (int visit = 0; visit < 30; ++visit) changes.visit(i, a);
        error += square(minus(a, changes.visit(i, a).x));
        size += square(a);
      }
      CHECK(std::sqrt(error / size) < 0.6 * floor.rounding);
      CHECK(std::sqrt(error / size) > 0.02 * floor.rounding);
    }
}

TEST_CASE("drift of delta a visit costs c delta / (1 - c)") {
  Source source;
  const std::size_t examples = 16, width = 128;
  for (const auto& [bits, c] : {std::pair{2, 0.41}, {3, 0.20}, {4, 0.10}})
    for (const bool straight : {false, true}) {
      Boundary changes = boundary(Mode::changes, Rounding::asymmetric(bits, 64));
      std::vector<Row> a = source.rows(examples, width), along;
      for (std::size_t i = 0; i < examples; ++i) along.push_back(source.direction(width));
      double rate = 0, most = 0, sum = 0, terms = 0;
      for (int visit = 0; visit < 40; ++visit)
        for (std::size_t i = 0; i < examples; ++i) {
          if (visit > 0) add(a[i], 1, straight ? along[i] : source.direction(width));
          const Row before = visit > 0 ? changes.memory.at(i) : a[i];
          const double error = norm(minus(a[i], changes.visit(i, a[i]).x));
          if (visit == 0) continue;
          rate = std::max(rate, error / norm(minus(a[i], before)));
          most = std::max(most, error);
          if (visit >= 10) sum += error * error, terms += 1;
        }
      // With the largest c that was seen it is a theorem.
      CHECK(rate < 1);
      CHECK(most <= rate / (1 - rate));
      CHECK(most > 1.1 * c);
      // Steps in random directions add up as squares do: c / sqrt(1 - c^2).
      const double typical = std::sqrt(sum / terms);
      if (!straight) CHECK(typical == about(c / std::sqrt(1 - c * c)).epsilon(0.1));
      if (straight) CHECK(typical > c / std::sqrt(1 - c * c));
    }
}

TEST_CASE("noise of sigma a visit costs c sigma sqrt(2 / (1 - c^2))") {
  Source source;
  const std::size_t examples = 16, width = 128;
  const double sigma = 0.05;
  for (const Rounding& store : {Rounding{}, Rounding::fp16()})
    for (const auto& [bits, c] : {std::pair{2, 0.41}, {3, 0.20}, {4, 0.10}}) {
      Boundary changes = boundary(Mode::changes, Rounding::asymmetric(bits, 64), store);
      const std::vector<Row> a = source.rows(examples, width);
      double sum = 0, terms = 0;
      for (int visit = 0; visit < 24; ++visit)
        for (std::size_t i = 0; i < examples; ++i) {
          Row noisy = a[i];
          add(noisy, sigma, source.normal(width));
          const double error = square(minus(noisy, changes.visit(i, noisy).x));
          if (visit >= 6) sum += error, terms += static_cast<double>(width);
        }
      CHECK(std::sqrt(sum / terms) == about(c * sigma * std::sqrt(2 / (1 - c * c))).epsilon(0.06));
    }
}

TEST_CASE("the store saturates") {
  struct Limit {
    Rounding store;
    double largest;
  };
  for (const Limit& limit :
       {Limit{Rounding::fp16(), 65504}, Limit{Rounding::bf16(), 0x1.FEp127},
        Limit{Rounding::fp32(), 0x1.FFFFFEp127}, Limit{Rounding::int8(), 0x1.FFFFFEp127}}) {
    Boundary changes = boundary(Mode::changes, Rounding::asymmetric(4, 64), limit.store);
    const Row huge(64, -1e300), small(64, 1);
    CHECK(changes.visit(1, huge).x == huge);
    CHECK(changes.memory.at(1) == Row(64, -limit.largest));
    changes.visit(1, huge);
    CHECK(changes.memory.at(1) == Row(64, -limit.largest));
    // It comes back.
    for (int visit = 0; visit < 200; ++visit) changes.visit(1, small);
    CHECK(largest(minus(changes.visit(1, small).x, small)) < 0.01);
  }
  // What is not finite counts as 0.
  Boundary changes = boundary(Mode::changes, Rounding::asymmetric(2, 4), Rounding::fp16());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(changes.visit(1, {infinity, -infinity, nan, 8}).x == Row{0, 0, 0, 8});
  CHECK(changes.visit(1, {infinity, 1, 2, nan}).x == Row{0, 0, 0, 0});
}

TEST_CASE("representable changes arrive exactly") {
  // Integers below 2^7 that drift by integers, through bf16.
  Source source;
  Boundary changes = boundary(Mode::changes, Rounding::bf16(), Rounding::fp32());
  std::vector<Row> a(9, Row(65));
  for (int visit = 0; visit < 20; ++visit)
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (double& value : a[i])
        value = std::clamp(value + std::floor(source.uniform(-9, 10)), -127.0, 127.0);
      CHECK(changes.visit(i, a[i]).x == a[i]);
      CHECK(changes.memory.at(i) == a[i]);
    }
}

TEST_CASE("who is remembered") {
  Boundary changes = boundary(Mode::changes, Rounding::asymmetric(2, 4));
  changes.options.capacity = 2;
  changes.visit(9, {1});
  changes.visit(anonymous, {5});
  CHECK(changes.visit(anonymous, {7}).x == Row{7});
  changes.visit(4, {2});
  CHECK(changes.order == std::vector<std::uint64_t>{9, 4});
  CHECK_THROWS_AS(changes.visit(5, {3}), std::invalid_argument);
  CHECK(changes.visit(9, {2}).x == Row{1.5});
  changes.options.send_whole = true;
  CHECK(changes.visit(5, {3}).x == Row{3});
  CHECK(changes.visit(5, {4}).x == Row{4});
  CHECK(changes.memory.size() == 2);
  changes.forget(9);
  CHECK(changes.visit(5, {6}).fresh);
  CHECK(!changes.visit(5, {6}).fresh);
  CHECK(changes.order == std::vector<std::uint64_t>{4, 5});
  CHECK_THROWS_AS(changes.visit(5, {6, 6}), std::invalid_argument);
  changes.forget();
  CHECK(changes.visit(4, {2}).fresh);
}

TEST_CASE("close calls") {
  const auto calls = [](const Rounding& rounding, const Row& row, double noise) {
    terse::index_t count = 0;
    rounding(row, noise, count);
    return count;
  };
  const Rounding two = Rounding::asymmetric(2, 4), eight = Rounding::int8();
  CHECK(calls(two, {-1, 0.2501, -0.749, 0}, 1e-5) == 0);
  CHECK(calls(two, {-1, 0.2501, -0.749, 0}, 2e-4) == 1);
  CHECK(calls(two, {-1, 0.2501, -0.749, 0}, 2e-3) == 2);
  CHECK(calls(two, {-1, 0.25, 0.75, 0.7501}, 1e-3) ==
        0);                                        // a tie that is exact; above the book there is none
  CHECK(calls(two, {-3, 0.75, 0, 0}, 1e-3) == 1);  // no power of 2
  CHECK(calls(two, {-1000, 250.1, 0, 0}, 0.05) == 0);
  CHECK(calls(eight, {127, 0.5, 3.4999, 9}, 1e-3) == 2);
  CHECK(calls(Rounding::fp16(), {1 + 0x1.01p-11, 1 + 0x1.1p-10, 1 + 0x1p-11, 70000}, 0x1p-18) == 1);
  CHECK(calls(Rounding::fp16(), {65568 + 0x1p-19}, 0x1p-18) == 0);  // beyond the largest
  CHECK(calls(Rounding::fp16(), {1 + 0x1.01p-11}, 0x1p-20) == 0);

  Boundary changes = boundary(Mode::changes, two);
  changes.visit(1, {100, 0, 0, 0});
  changes.visit(1, {99, 0.2501, 0, 0});
  CHECK(changes.close_calls == 0);  // within 1e-4 of 100
  changes.options.margin = 1e-5;
  changes.visit(1, {98, 0.2501, 0, 0});
  CHECK(changes.close_calls == 1);
}

TEST_CASE("two steps by hand") {
  Pipeline::Options options;
  options.learning_rate = 0.5;
  options.boundary.mode = Mode::direct;
  options.boundary.forward = Rounding::asymmetric(2, 64);
  options.backward = Pipeline::by_row(Rounding::asymmetric(2, 64));
  Pipeline direct({scalar_stage(2, 1), scalar_stage(3, 0)}, options);
  // a = 4, x = 2, y = 6, dy = 4, g = 12, b = 6.
  CHECK(direct.train({1}, {1.5}, {2}) == 8);
  CHECK(direct.passed[0].a == Row{4});
  CHECK(direct.passed[0].x == Row{2});
  CHECK(direct.passed[0].g == Row{12});
  CHECK(direct.passed[0].b == Row{6});
  CHECK(values(direct.stages) == Row{2 - 4.5, 1 - 3, 3 - 4, 0 - 2});

  options.learning_rate = 0.25;
  options.boundary.mode = Mode::changes;
  options.backward = nullptr;
  Pipeline changes({scalar_stage(2, 1), scalar_stage(3, 0)}, options);
  CHECK(changes.train({7}, {1.5}, {10}) == 2);  // a = x = m = 4, y = 12, g = 6
  CHECK(values(changes.stages) == Row{-0.25, -0.5, 1, -0.5});
  CHECK(changes.passed[0].fresh == 1);
  // a = 6, d = 2, q = 1, x = m = 5, y = 4.5, g = 2.
  CHECK(changes.train({7}, {-26}, {2.5}) == 2);
  CHECK(changes.passed[0].fresh == 0);
  CHECK(changes.passed[0].x == Row{5});
  CHECK(changes.boundaries[0].memory.at(7) == Row{5});
  CHECK(values(changes.stages) == Row{12.75, -1, -1.5, -1});
  CHECK(changes.steps == 2);
}

TEST_CASE("messages of gradients") {
  Source source;
  Pipeline::Options options;
  options.boundary.mode = Mode::exact;
  options.micro_batch = 2;
  std::vector<std::vector<std::size_t>> messages;
  options.backward = [&](const Pipeline::Message& message, const Row& g) {
    CHECK(g.size() == message.rows * message.width);
    CHECK(message.step == 1);
    messages.push_back({message.micro_batch, message.boundary, message.rows, message.width});
    return Pipeline::by_row(Rounding::asymmetric(2, 64))(message, g);
  };
  Pipeline pipeline({stage(source, 3, 4, false), stage(source, 4, 5, false), stage(source, 5, 2, false)},
                    options);
  const Examples examples = random_examples(source, 3, 3, 2);
  train(pipeline, examples.batch(examples.order(), 0, 3));
  CHECK(messages ==
        std::vector<std::vector<std::size_t>>{{0, 1, 2, 5}, {0, 0, 2, 4}, {1, 1, 1, 5}, {1, 0, 1, 4}});
  // Each row has a scale of its own, and the stage before goes on from what was decoded: b W.
  const Pipeline::Passed &first = pipeline.passed[0], &second = pipeline.passed[1];
  for (std::size_t r = 0; r < 3; ++r) {
    const Row g(&second.g[r * 5], &second.g[r * 5] + 5), b(&second.b[r * 5], &second.b[r * 5] + 5);
    CHECK(b == Rounding::asymmetric(2, 64)(g));
    for (std::size_t i = 0; i < 4; ++i) {
      double sum = 0;
      for (std::size_t o = 0; o < 5; ++o) sum += b[o] * pipeline.stages[1].weights[o * 4 + i];
      CHECK(std::abs(first.g[r * 4 + i] - sum) < 1e-12);
    }
  }
}

TEST_CASE("exact training follows the composed function's gradient") {
  Source source;
  Pipeline::Options options;
  options.boundary.mode = Mode::exact;
  options.micro_batch = 3;
  options.learning_rate = 0.1;
  Pipeline pipeline({stage(source, 3, 5, true), stage(source, 5, 4, true), stage(source, 4, 2, false)},
                    options);
  const Examples examples = random_examples(source, 14, 3, 2);
  for (std::size_t step = 0; step < 4; ++step) {
    const Examples::Batch batch = examples.batch(examples.order(), step % 2 * 7, 7);  // 3, 3, 1
    std::vector<LinearStage> stages = pipeline.stages;
    const Row before = values(stages);
    const double loss = composed_loss(stages, 7, batch.inputs, batch.targets);
    CHECK(pipeline.evaluate(batch.inputs, batch.targets) == about(loss).epsilon(1e-13));
    CHECK(train(pipeline, batch) == about(loss).epsilon(1e-13));
    const Row after = values(pipeline.stages);
    double worst = 0;
    const std::vector<double*> all = parameters(stages);
    for (std::size_t k = 0; k < all.size(); ++k) {
      const double h = 1e-5;
      *all[k] = before[k] + h;
      const double up = composed_loss(stages, 7, batch.inputs, batch.targets);
      *all[k] = before[k] - h;
      const double down = composed_loss(stages, 7, batch.inputs, batch.targets);
      *all[k] = before[k];
      worst = std::max(worst, std::abs((before[k] - after[k]) / 0.1 - (up - down) / (2 * h)));
    }
    CHECK(worst < 1e-8);
    CHECK(largest(minus(before, after)) > 1e-3);
    CHECK(pipeline.passed[1].x.size() == 7 * 4);
    CHECK(pipeline.passed[1].x == pipeline.passed[1].a);
    CHECK(pipeline.passed[1].b == pipeline.passed[1].g);
  }
}

TEST_CASE("micro-batches add up to the batch") {
  Source source;
  const Examples examples = random_examples(source, 10, 3, 2);
  const std::vector<LinearStage> stages{stage(source, 3, 64, true), stage(source, 64, 2, false)};
  for (const Mode mode : {Mode::exact, Mode::direct, Mode::changes}) {
    Pipeline::Options options;
    options.boundary.mode = mode;
    options.boundary.forward = Rounding::asymmetric(2, 64);
    options.learning_rate = 0.1;
    options.micro_batch = 10;
    Pipeline whole(stages, options);
    options.micro_batch = 4;
    Pipeline parts(stages, options);
    for (int step = 0; step < 5; ++step) {
      const Examples::Batch batch = examples.batch(examples.order(), 0, 10);
      const double loss = train(whole, batch);
      CHECK(train(parts, batch) == about(loss).epsilon(1e-12));
      CHECK(largest(minus(values(whole.stages), values(parts.stages))) < 1e-12);
    }
  }
}

TEST_CASE("the first epoch is exact") {
  Source source;
  const Examples examples = random_examples(source, 24, 3, 2);
  const std::vector<LinearStage> stages{stage(source, 3, 64, true), stage(source, 64, 32, true),
                                        stage(source, 32, 2, false)};
  Pipeline::Options options;
  options.learning_rate = 0.05;
  options.micro_batch = 3;
  options.boundary.mode = Mode::exact;
  Pipeline exact(stages, options);
  options.boundary.mode = Mode::changes;
  options.boundary.forward = Rounding::asymmetric(2, 64);
  options.boundary.store = Rounding::int8();
  Pipeline changes(stages, options);
  options.boundary.first = Rounding::bf16();
  Pipeline cast(stages, options);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::size_t> order = examples.order();
    source.shuffle(order);
    for (std::size_t first = 0; first < examples.count; first += 8) {
      const Examples::Batch batch = examples.batch(order, first, 8);
      const double loss = train(exact, batch), other = train(changes, batch);
      train(cast, batch);
      CHECK((loss == other) == (epoch == 0));
      CHECK((values(exact.stages) == values(changes.stages)) == (epoch == 0));
      CHECK(values(exact.stages) != values(cast.stages));
      CHECK(changes.passed[1].fresh == (epoch == 0 ? 8 : 0));
    }
  }
  CHECK(changes.boundaries[0].memory.size() == 24);
  CHECK(exact.boundaries[0].memory.empty());
}

TEST_CASE("an example twice in a step") {
  Pipeline::Options options;
  options.boundary.forward = Rounding::asymmetric(2, 64);
  options.boundary.capacity = 2;
  options.micro_batch = 2;
  Pipeline pipeline({scalar_stage(1, 0), scalar_stage(1, 0)}, options);
  // In order: 4 whole, then the change by 2, then that by 5.
  pipeline.train({1, 2, 1, anonymous, 1, anonymous}, {4, 0, 6, 3, 10, 3}, Row(6));
  CHECK(pipeline.passed[0].x == Row{4, 0, 5, 3, 7.5, 3});
  CHECK(pipeline.passed[0].fresh == 4);

  // What is refused changes nothing.
  const auto memory = pipeline.boundaries[0].memory;
  CHECK_THROWS_AS(pipeline.train({1, 2, 1, 1}, {9, 9, 9, 9}, Row(4)), std::invalid_argument);
  CHECK_THROWS_AS(pipeline.train({1, 2, 3}, {9, 9, 9}, Row(3)), std::invalid_argument);
  CHECK_THROWS_AS(pipeline.train({1, 2}, {9}, Row(2)), std::invalid_argument);
  CHECK_THROWS_AS(pipeline.train({1}, {9}, Row(2)), std::invalid_argument);
  CHECK_THROWS_AS(pipeline.train({}, {}, {}), std::invalid_argument);
  CHECK(pipeline.boundaries[0].memory == memory);
  CHECK(pipeline.steps == 1);
  CHECK_THROWS_AS(Pipeline({scalar_stage(1, 0), {2, 1, {1, 1}, {0}, false, {}, {}}}, options),
                  std::invalid_argument);
}

TEST_CASE("revisited, changes train as exact activations do, and direct ones do not") {
  // Targets of a linear teacher, which the exact pipeline learns.
  Source source;
  Examples examples = random_examples(source, 16, 4, 2);
  const std::vector<LinearStage> teacher{stage(source, 4, 64, false), stage(source, 64, 2, false)};
  for (std::size_t r = 0; r < 16; ++r)
    for (std::size_t o = 0; o < 2; ++o)
      examples.targets[r * 2 + o] = composed_output(teacher, 2, examples.inputs.data() + r * 4, o);
  const std::vector<LinearStage> stages{stage(source, 4, 64, false), stage(source, 64, 2, false)};
  const auto last_loss = [&](Mode mode) {
    Pipeline::Options options;
    options.boundary.mode = mode;
    options.boundary.forward = Rounding::asymmetric(2, 64);
    options.boundary.store = Rounding::fp16();
    options.learning_rate = 0.03;
    options.micro_batch = 4;
    Pipeline pipeline(stages, options);
    for (int epoch = 0; epoch < 150; ++epoch)
      for (std::size_t first = 0; first < 16; first += 8)
        train(pipeline, examples.batch(examples.order(), first, 8));
    return pipeline.evaluate(examples.inputs, examples.targets);
  };
  const double exact = last_loss(Mode::exact), changes = last_loss(Mode::changes),
               direct = last_loss(Mode::direct);
  CHECK(exact < 1e-8);
  CHECK(changes < 1e-5);
  CHECK(direct > 5e-3);
}
