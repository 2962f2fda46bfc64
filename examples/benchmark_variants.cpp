// SPDX-License-Identifier: Apache-2.0

// Variants of what the library has, each beside the original in Google Benchmark: of a compressor, of a kernel, of a verb.
//
//   bench/run compare build/examples/benchmark_variants:Adam build/examples/benchmark_variants:'Adam, quick root'

#include <benchmark/benchmark.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <terse/bench/compressor.hpp>
#include <terse/compressor/sign.hpp>
#include <terse/preconditioner/elementwise.hpp>
#include <thread>
#include <utility>

/// A compressor: the library's signs, read from the sign bit, so that the code of -0 is another one.
struct TopBit : terse::quantizer::SignBit<terse::RootMeanSquare> {
  TERSE_HD static std::uint32_t code(float value, float, std::uint32_t) {
    return ~std::bit_cast<std::uint32_t>(value) >> 31;
  }
};
TERSE_BENCHMARK_COMPRESSOR_NAMED("Sign", terse::Sign{});
TERSE_BENCHMARK_COMPRESSOR_NAMED("Sign, top bit", terse::Packed<TopBit, terse::PerSegment>{});

TERSE_NUMERICS_BEGIN

/// A kernel: Adam's step by a reciprocal root that Newton's iteration finds, without a division and right to 5 in a million.
struct QuickRoot {
  float beta, epsilon;
  TERSE_HD static float nearer(float square, float root) {
    return root * (1.5F - 0.5F * square * root * root);
  }
  template <class Element>
  TERSE_HD float step(const Element& e, float mean, float direction) const {
    const float v = beta * e[0] + (1 - beta) * (mean * mean);
    e[0] = v;
    const float square = e.scalar(0) * v + epsilon * epsilon;
    const float first = std::bit_cast<float>(0x5F3759DFU - (std::bit_cast<std::uint32_t>(square) >> 1));
    return direction * nearer(square, nearer(square, first));
  }
};

/// Runs either rule over arrays, on host and device. It is what verbs call for each element.
template <class Rule>
struct Descend {
  Rule rule;
  float *x, *variance;
  const float* gradient;

  struct Element {
    float* variance;
    TERSE_HD float& operator[](int) const { return *variance; }
    TERSE_HD float scalar(int) const { return 1; }  // the bias correction
  };
  // Optional: by them a device loads four elements at a time.
  using StreamsOf = Descend;
  TERSE_HD auto streams() { return terse::updates(x) + terse::updates(variance) + terse::reads(gradient); }
  TERSE_HD void operator()(const terse::Piece&, terse::index_t i) const {
    x[i] -= 1e-3F * rule.step(Element{variance + i}, gradient[i], gradient[i]);
  }
};

TERSE_NUMERICS_END

/// A verb: for_each on two threads. An executor's other verbs are those of its base.
struct Halves : terse::executor::host {};

template <class F>
void for_each(Halves, const terse::Range& range, const F& f) {
  const auto parts = range.cut(2);
  std::thread second([&] { for_each(terse::executor::host{}, parts[1], f); });
  for_each(terse::executor::host{}, parts[0], f);
  second.join();
}

namespace {

// Made before they are used: layouts and ranges are made by functions that are called cold, and what stands beside such a call
// is cold to g++, too, and not vectorized.
struct Arrays {
  terse::Range range;
  terse::buffer<float> x, variance;
  const float* gradient;
  explicit Arrays(terse::index_t n)
      : range(terse::Layout::flat(n).range()),
        x(n),
        variance(n),
        gradient(terse::bench::normal_samples(n + 20)) {}
};

template <class Rule, class E>
void add_step(const char* name, Rule rule, E executor) {
  for (const terse::index_t n : terse::bench::sizes) {
    terse::bench::add(name, "step", n, [=](benchmark::State& state) {
      const auto here = terse::bench::reused<Arrays>(name, n, n);
      const Descend<Rule> f{rule, here->x.data(), here->variance.data(), here->gradient};
      terse::bench::measure(state, n, [&] { for_each(executor, here->range, f); });
    });
  }
}

/// Where 20 steps lead.
template <class Rule, class E>
terse::buffer<float> steps(Rule rule, E executor) {
  Arrays here(1000);
  for (int step = 0; step < 20; ++step)
    for_each(executor, here.range,
             Descend<Rule>{rule, here.x.data(), here.variance.data(), here.gradient + step});
  return std::move(here.x);
}

float apart(const terse::buffer<float>& a, const terse::buffer<float>& b) {
  float most = 0;
  for (terse::index_t i = 0; i < a.size(); ++i) most = std::fmax(most, std::fabs(a[i] - b[i]));
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  const auto adam = terse::rule_of<float>(terse::AdamVariance{});
  const QuickRoot quick{adam.beta, adam.epsilon};
  const terse::executor::host host;
  // A variant that is wrong is not worth its speed.
  const auto expected = steps(adam, host);
  if (apart(expected, steps(adam, Halves{})) != 0 || apart(expected, steps(quick, host)) > 1e-4F) {
    std::fputs("benchmark_variants: a variant's results are not the library's; nothing was measured\n",
               stderr);
    return EXIT_FAILURE;
  }
  add_step("Adam", adam, host);
  add_step("Adam, quick root", quick, host);
  add_step("Adam, two threads", adam, Halves{});

  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
