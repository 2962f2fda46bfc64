// SPDX-License-Identifier: Apache-2.0
// One rank of bench/network/run: steps of methods over MPI, timed on rank 0.
//
//   bench_network METHOD,... HIDDEN BATCH STEPS [SLICE_BYTES]
//
// Prints a line of JSON for each method: seconds of each step, gradient included, of which the gradient's, and the bytes that a
// step sends.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "model.hpp"
#include "terse/terse.hpp"
#include "terse/transport/any.hpp"
#include "terse/transport/mpi.hpp"

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Job {
  Model& model;
  terse::Layout layout;
  std::vector<std::int64_t> offsets;
  terse::Options options;
  int steps;
};

template <class R>
void measure(const std::string& name, R recipe, bool overlaps, const Job& job,
             terse::AnyTransport& transport) {
  terse::Optimizer optimizer{recipe, transport, job.layout, job.options};
  std::vector<float> x(static_cast<std::size_t>(job.layout.size()), 0.01F), g(x.size());
  std::string seconds, gradients;
  terse::StepResult result;
  // The methods of two stages have theirs in the first two steps.
  const int before = optimizer.bytes_per_step().compressed > 0 ? 2 : 1;
  for (int step = -before; step < job.steps; ++step) {
    terse::barrier(transport);
    const auto begin = Clock::now();
    if (overlaps) optimizer.begin(x, g);
    job.model.gradient(x.data(), g.data(), job.offsets, [&](std::int64_t k) {
      if (overlaps) optimizer.ready(k);
    });
    const double gradient = seconds_since(begin);
    result = optimizer.step(x, g);
    const double whole = seconds_since(begin);
    if (step < 0) continue;
    seconds += (seconds.empty() ? "" : ", ") + std::to_string(whole);
    gradients += (gradients.empty() ? "" : ", ") + std::to_string(gradient);
  }
  if (transport.rank() != 0) return;
  std::printf("{\"method\": \"%s\", \"seconds\": [%s], \"gradient\": [%s], \"bytes\": %llu, \"real\": %s}\n",
              name.c_str(), seconds.c_str(), gradients.c_str(),
              static_cast<unsigned long long>(result.bytes_sent), real_model ? "true" : "false");
  std::fflush(stdout);
}

using Measure = std::function<void(const std::string&, const Job&, terse::AnyTransport&)>;
template <class R>
Measure with(R recipe, bool overlaps = false) {
  return [=](const std::string& name, const Job& job, terse::AnyTransport& transport) {
    measure(name, recipe, overlaps, job, transport);
  };
}

template <class R>
R freezing(R recipe) {
  recipe.preconditioner.freeze = terse::AtStep{2};
  return recipe;
}

const std::map<std::string, Measure> methods = {
    {"adam", with(terse::Adam<>{})},
    {"adam+overlap", with(terse::Adam<>{}, true)},
    {"adam/all-pairs",
     with(terse::Adam<terse::BySize<>>{.topology = {.from = std::numeric_limits<terse::index_t>::max()}})},
    {"adam/ring", with(terse::Adam<terse::Ring>{})},
    {"1-bit-adam", with(freezing(terse::OneBitAdam<terse::ScatterGather>{}))},
    {"1-bit-adam+overlap", with(freezing(terse::OneBitAdam<terse::ScatterGather>{}), true)},
    {"1-bit-adam/ring", with(freezing(terse::OneBitAdam<terse::Ring>{}))},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::fprintf(stderr,
                 "usage: bench_network METHOD,... HIDDEN BATCH STEPS [SLICE_BYTES], with METHOD one of");
    for (const auto& [name, measure] : methods) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  return terse::Mpi::run(argc, argv, [&](terse::Mpi& mpi) {
    terse::AnyTransport transport(mpi.split(0, mpi.rank()));
    const auto model = make_model(std::atoi(argv[2]), std::atoi(argv[3]), mpi.rank());
    Job job{*model, {}, {}, {}, std::atoi(argv[4])};
    if (argc == 6) job.options.slice_bytes = std::atoll(argv[5]);
    for (const std::int64_t size : model->sizes()) {
      job.layout.add({"parameter" + std::to_string(job.offsets.size()), {size}});
      job.offsets.push_back(job.layout.segments().back().offset);
    }
    std::istringstream names(argv[1]);
    for (std::string name; std::getline(names, name, ',');) {
      const auto found = methods.find(name);
      if (found == methods.end()) throw terse::usage_error("there is no method " + name, mpi.rank());
      found->second(name, job, transport);
    }
  });
}
