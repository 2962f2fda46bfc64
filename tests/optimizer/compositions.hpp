// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/averaging.hpp"
#include "support.hpp"

// Trains compositions of policies and compares them with their oracle, for compositions*.cpp.

namespace terse::test {

/// Matrices and vectors with rates and decay of their own, one of them exact; none fills its blocks of 64.
inline Layout few_layers() {
  Layout layout;
  layout.add({"w", {12, 16}});
  layout.add({"b", {7}, 2, 0});
  layout.add({"exact", {5, 11}, 1, 0.5F, false});
  layout.add({"v", {24, 9}, 0.5F, 0.25F});
  return layout;
}

/// A gradient that pulls every parameter to a place of its own, which ranks disagree about, with noise on it.
inline Floats pull(const Layout& layout, int rank, std::uint64_t step, const Floats& x) {
  Floats g(at(layout.size()));
  for (const Segment& segment : layout.segments())
    for (index_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const float target = noise(11, 0, 0, i) + 0.5F * noise(12, rank, 0, i);
      g[at(i)] = x[at(i)] - target + 0.3F * noise(13, rank, step, i);
    }
  return g;
}

/// Neither constant nor monotonous.
inline float up_and_down(float rate, std::uint64_t step) {
  return rate * (1 + 0.5F * std::sin(static_cast<float>(step)));
}

struct Training {
  int ranks = 3;
  std::uint64_t steps = 30;
  float clip_norm = std::numeric_limits<float>::infinity();
  bool keeps_rate = false;       ///< the rates of the recipe, in all steps
  std::uint64_t still_step = 0;  ///< whose rate is 0
  std::uint64_t seed = 5;
  std::uint64_t silent_until = 0;    ///< every 17th element has no gradient until then
  std::vector<std::uint8_t> mask{};  ///< as the oracle shall know it

  float rate(float base, std::uint64_t step) const {
    return step == still_step ? 0.0F : up_and_down(base, step);
  }
  Floats gradient(const Layout& layout, int rank, std::uint64_t step, const Floats& x) const {
    Floats g = pull(layout, rank, step, x);
    if (step <= silent_until)
      for (std::size_t i = 3; i < g.size(); i += 17) g[i] = 0;
    return g;
  }
};

/// history[step][rank]; step 0 is before the first one. `prepare(optimizer)` comes before it, too.
template <class R, class Prepare = NoPreparation>
History train(const R& recipe, const Layout& layout, const Training& training, const Prepare& prepare = {}) {
  History history(training.steps + 1, std::vector<Snapshot>(at(training.ranks)));
  ThreadGroup(training.ranks, std::chrono::seconds(20)).run([&](Threads& transport) {
    Optimizer optimizer{recipe, transport, layout,
                        masks_any({.seed = training.seed, .clip_norm = training.clip_norm})};
    prepare(optimizer);
    const float rate = optimizer.learning_rate();
    Floats x = start(layout);
    for (std::uint64_t step = 0; step <= training.steps; ++step) {
      if (step > 0) {
        if (!training.keeps_rate) optimizer.learning_rate(training.rate(rate, step));
        optimizer.step(x, training.gradient(layout, transport.rank(), step, x));
      }
      Snapshot& snapshot = history[step][at(transport.rank())];
      optimizer.walk(snapshot.state);
      snapshot.parameters = x;
    }
  });
  return history;
}

/// What all ranks' gradients were in a step: the library's own parameters decide, so that an oracle that is off does not
/// get others.
inline std::vector<Floats> gradients_of(const History& history, const Layout& layout,
                                        const Training& training, std::uint64_t step) {
  std::vector<Floats> g;
  for (int rank = 0; rank < training.ranks; ++rank)
    g.push_back(training.gradient(layout, rank, step, history[step - 1][at(rank)].parameters));
  return g;
}

/// Keeps the larger one; what is not a number is larger than all.
inline void raise(double& worst, double value) {
  if (!(value <= worst)) worst = std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
}

/// The largest |a - b| over the largest |b|, padding left out.
template <class A, class B>
double distance(const Layout& layout, const A& a, const B& b) {
  double worst = 0, largest = 0;
  each(
      layout, [](const Segment&) { return true; },
      [&](std::size_t i) {
        raise(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
        raise(largest, std::abs(static_cast<double>(b[i])));
      });
  return worst == 0 ? 0 : worst / largest;
}

/// How far a run and a formula come apart in all steps, and how far parameters have come, against the largest one.
struct Apart {
  double parameters = 0, buffers = 0, moved = 0;
};

/// A recipe's run against its oracle's: parameters and the policies' buffers, on every rank after every step.
template <class R, class Prepare = NoPreparation>
Apart from_oracle(const R& recipe, const Training& training, const Layout& layout,
                  const Prepare& prepare = {}) {
  const History ours = train(recipe, layout, training, prepare);
  reference::RunOptions options{training.seed, training.clip_norm, {}, training.mask};
  if (const auto q = ours[0][0].state.parts.find("low_rank_q"); q != ours[0][0].state.parts.end())
    options.first_q = q->second;
  auto oracle = reference::composition(recipe, layout, training.ranks, start(layout), options);

  Apart apart;
  for (std::uint64_t step = 1; step <= training.steps; ++step) {
    if (!training.keeps_rate)
      oracle.learning_rate(training.rate(terse::detail::learning_rate_of(recipe), step));
    oracle.step(gradients_of(ours, layout, training, step));
    for (std::size_t rank = 0; rank < at(training.ranks); ++rank) {
      const Snapshot& now = ours[step][rank];
      const auto& expected = oracle.ranks[rank];
      if (now.parameters != ours[step][0].parameters) raise(apart.parameters, 1);
      raise(apart.parameters, distance(layout, now.parameters, expected.parameters));
      for (const auto* buffers : {&expected.momenta, &expected.scales})
        for (const auto& [name, buffer] : *buffers)
          raise(apart.buffers, distance(layout, now.state.parts.at(name), buffer));
      for (const auto& [name, numbers] : expected.of_layers)
        for (std::size_t s = 0; s < numbers.size(); ++s)
          raise(apart.buffers,
                std::abs(now.state.parts.at(name)[s] - numbers[s]) / std::max(1.0, std::abs(numbers[s])));
    }
  }
  apart.moved = distance(layout, ours.back()[0].parameters, start(layout));
  return apart;
}

/// A recipe's run against a formula: u = formula(k, mean gradient, step), x = x - rate (u + decay x).
template <class R, class Formula>
Apart from_formula(const R& recipe, Formula formula, const Training& training, const Layout& layout) {
  const History ours = train(recipe, layout, training);
  const Floats begin = start(layout);
  std::vector<double> x(begin.begin(), begin.end());
  Apart apart;
  for (std::uint64_t step = 1; step <= training.steps; ++step) {
    const std::vector<Floats> g = gradients_of(ours, layout, training, step);
    const auto rate = static_cast<double>(training.rate(recipe.learning_rate, step));
    for (const Segment& segment : layout.segments())
      for (std::size_t k = at(segment.offset); k < at(segment.offset + segment.count); ++k) {
        double mean = 0;
        for (const Floats& one : g) mean += static_cast<double>(one[k]) / training.ranks;
        const double decay =
            static_cast<double>(recipe.weight_decay) * static_cast<double>(segment.weight_decay);
        const double u = formula(k, mean, static_cast<double>(step));
        x[k] -= rate * static_cast<double>(segment.learning_rate_scale) * (u + decay * x[k]);
      }
    raise(apart.parameters, distance(layout, ours[step][0].parameters, x));
  }
  apart.moved = distance(layout, ours.back()[0].parameters, begin);
  return apart;
}

template <class R>
void check(const Apart& apart, double tolerance) {
  CAPTURE(type_name<R>());
  CHECK(apart.parameters < tolerance);
  CHECK(apart.buffers < tolerance);
  // Standing still proves nothing, nor does running away.
  CHECK(apart.moved > 0.05);
  CHECK(apart.moved < 10);
}
template <class R, class Prepare = NoPreparation>
void follows_oracle(const R& recipe, double tolerance, const Training& training = {},
                    const Layout& layout = few_layers(), const Prepare& prepare = {}) {
  check<R>(from_oracle(recipe, training, layout, prepare), tolerance);
}
template <class R, class Formula>
void follows_formula(const R& recipe, double tolerance, Formula formula, const Training& training = {}) {
  check<R>(from_formula(recipe, formula, training, few_layers()), tolerance);
}

}  // namespace terse::test
