// SPDX-License-Identifier: Apache-2.0

// One method of the experiment `theory`. Theorems bound the mean over steps of |grad f(mean of ranks)|^2, at a learning rate
// proportional to sqrt(ranks / steps), by a constant / sqrt(ranks steps). Prints a line of JSON for each pair of ranks and steps.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "terse/optimizer/d_sgd.hpp"
#include "terse/optimizer/decentlam.hpp"
#include "terse/optimizer/dm_sgd.hpp"
#include "terse/optimizer/error_feedback_sgd.hpp"
#include "terse/optimizer/local/local_sgd.hpp"
#include "terse/optimizer/local/swarm_sgd.hpp"
#include "terse/optimizer/momentum_consensus.hpp"
#include "terse/optimizer/momentum_sgd.hpp"
#include "terse/optimizer/one_bit_adam.hpp"
#include "terse/optimizer/optimizer.hpp"
#include "terse/transport/collectives.hpp"
#include "terse/transport/thread.hpp"
#include "theory.hpp"

namespace {

using namespace theory;

/// Returns the mean over steps of |grad f|^2 at the mean of the ranks' parameters.
template <class Recipe>
double mean_square_norm(const Recipe& recipe, const Problem& problem, const Point& point) {
  const std::uint64_t stride = std::max<std::uint64_t>(1, point.steps / 2048);
  double sum = 0;
  std::uint64_t terms = 0;
  terse::ThreadGroup(point.ranks, std::chrono::seconds(60)).run([&](terse::Threads& transport) {
    terse::Threads side = transport.split(0, transport.rank());
    terse::Layout layout;
    layout.add({"x", {static_cast<terse::index_t>(dimension)}});
    terse::Optimizer optimizer{recipe, transport, layout};
    std::vector<float> x(static_cast<std::size_t>(layout.size()), 0.0F), g(x), mean(x);
    for (std::uint64_t step = 0; step < point.steps; ++step) {
      if (step % stride == 0) {
        mean = x;
        terse::mean(side, terse::view<float>(mean.data(), static_cast<terse::index_t>(mean.size())));
        if (transport.rank() == 0) {
          Vector at;
          std::copy(mean.begin(), mean.begin() + dimension, at.begin());
          sum += problem.square_norm(at);
          ++terms;
        }
      }
      if constexpr (requires { optimizer.begin(x); }) optimizer.begin(x);
      problem.sample(transport.rank(), point.ranks, step, std::span(x).first(dimension),
                     std::span(g).first(dimension));
      optimizer.step(x, g);
    }
  });
  return sum / static_cast<double>(terms);
}

using Run = std::function<double(const Problem&, const Point&)>;

/// Returns a run of the recipe that `make` returns for a point.
template <class Make>
Run run_of(Make make) {
  return [make](const Problem& problem, const Point& point) {
    return mean_square_norm(make(point), problem, point);
  };
}

constexpr double beta = 0.9;
constexpr float beta_f = 0.9F;
using Graph = terse::Mixing<terse::graph::SymmetricExponential>;
using Ring = terse::Mixing<terse::graph::Ring>;
using Sgd = terse::MomentumSgd<>;

const std::map<std::string, Run> methods{
    {"sgd", run_of([](const Point& p) {
       return Sgd{.learning_rate = p.sgd(), .momentum_correction = {.momentum = 0}};
     })},
    {"d-sgd", run_of([](const Point& p) { return terse::DSgd<Graph>{.learning_rate = p.sgd()}; })},
    {"dm-sgd", run_of([](const Point& p) {
       return terse::DmSgd<Graph>{.learning_rate = p.momentum(beta),
                                  .momentum_correction = {{.momentum = beta_f}}};
     })},
    {"decentlam", run_of([](const Point& p) {
       return terse::DecentLaM<Graph>{.learning_rate = p.momentum(beta),
                                      .momentum_correction = {.momentum = beta_f}};
     })},
    {"momentum-consensus", run_of([](const Point& p) {
       return terse::MomentumConsensus<Graph>{.learning_rate = p.momentum(beta),
                                              .momentum_correction = {.momentum = beta_f}};
     })},
    {"awc-dm-sgd", run_of([](const Point& p) {
       return terse::AwcDmSgd<Graph>{.learning_rate = p.momentum(beta),
                                     .momentum_correction = {{.momentum = beta_f}}};
     })},
    {"local-sgd", run_of([](const Point& p) {
       return terse::LocalSgd<Sgd>{
           .inner = {.learning_rate = p.sgd(), .momentum_correction = {.momentum = 0}}, .period = 4};
     })},
    {"slowmo", run_of([](const Point& p) {
       return terse::SlowMo<Sgd>{
           .inner = {.learning_rate = p.momentum(0.5), .momentum_correction = {.momentum = 0}},
           .period = 4,
           .outer = {.momentum = 0.5F}};
     })},
    {"swarm-sgd", run_of([](const Point& p) {
       return terse::SwarmSgd<Sgd>{
           .inner = {.learning_rate = p.sgd(), .momentum_correction = {.momentum = 0}},
           .schedule = {.period = 2}};
     })},
    {"ef-sgd", run_of([](const Point& p) { return terse::ErrorFeedbackSgd<>{.learning_rate = p.sgd()}; })},
    // Divides by the root of the variance: noise of `deviation`, and less of a mean of ranks, which brings sqrt(ranks).
    {"one-bit-adam", run_of([](const Point& p) {
       const double rate = p.rate * deviation / std::sqrt(static_cast<double>(p.steps));
       return terse::OneBitAdam<>{.learning_rate = static_cast<float>(rate),
                                  .beta2 = 0.98F,
                                  .preconditioner = {.freeze = terse::AtStep{200}}};
     })},
    // On a ring, where consensus is slow: momentum consensus, its base without momentum, and the base with that of SGD.
    {"ring-awc-d-sgd", run_of([](const Point& p) { return terse::AwcDSgd<Ring>{.learning_rate = p.sgd()}; })},
    {"ring-awc-dm-sgd", run_of([](const Point& p) {
       return terse::AwcDmSgd<Ring>{.learning_rate = p.momentum(beta),
                                    .momentum_correction = {{.momentum = beta_f}}};
     })},
    {"ring-momentum-consensus", run_of([](const Point& p) {
       return terse::MomentumConsensus<Ring>{.learning_rate = p.momentum(beta),
                                             .momentum_correction = {.momentum = beta_f}};
     })},
    {"ac-sgd", ac_sgd},
    {"direct", direct_quantization},
};

struct Options {
  std::string method = "d-sgd";
  std::uint64_t seed = 1;
  double rate = 2;
  std::vector<std::string> points{"8x1024", "8x4096"};
};

Point parse_point(const std::string& text, double rate) {
  Point point{0, 0, rate};
  char rest = 0;
  unsigned long long steps = 0;
  const bool parsed = std::sscanf(text.c_str(), "%dx%llu%c", &point.ranks, &steps, &rest) == 2;
  if (!parsed || point.ranks < 1 || blocks % point.ranks != 0 || steps < 1)
    throw std::invalid_argument(fmt::format(
        "a point is ranks, x and steps, such as 8x1024, with 1, 2, 4, 8 or 16 ranks, not '{}'", text));
  point.steps = steps;
  return point;
}

void run(const Options& options) {
  const auto found = methods.find(options.method);
  if (found == methods.end()) {
    std::string names;
    for (const auto& [name, method] : methods) names += " " + name;
    throw std::invalid_argument(fmt::format("there is no method '{}'; there are{}", options.method, names));
  }
  std::vector<Point> points;
  double all = 0, done = 0;
  for (const std::string& text : options.points) {
    points.push_back(parse_point(text, options.rate));
    all += points.back().ranks * static_cast<double>(points.back().steps);
  }
  const Problem problem(options.seed);
  for (const Point& point : points) {
    const double norm = found->second(problem, point);
    done += point.ranks * static_cast<double>(point.steps);
    fmt::print("{{\"ranks\": {}, \"steps\": {}, \"norm\": {:.6g}, \"done\": {:.4g}}}\n", point.ranks,
               point.steps, norm, done / all);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Mean squared gradient norm of a method on logistic regression with known noise, for pairs of ranks "
      "and steps."};
  app.option_defaults()->always_capture_default();
  app.add_option("--method", options.method, "the method");
  app.add_option("--seed", options.seed, "of data and noise");
  app.add_option("--rate", options.rate, "the learning rate is this times sqrt(ranks / steps)");
  app.add_option("--points", options.points, "ranks x steps; of ac-sgd and direct, steps alone count")
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "theory: %s\n", fault.what());
    return 1;
  }
}
